"""Costs of an image up to its row: fetching, decoding, embedding, writing."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil
import pyarrow as pa
from PIL import Image

from benchmarks.common.rows import model_of, usual_rows
from benchmarks.scale import Costs
from embedder.images import CropSpec
from index.collection import Collection
from index.collection.row_files import FileList
from jobs.embedding.stages import DecodeSettings, fetch_and_decode
from jobs.sources.listing import listing_table

BLOCKS = (256, 4096)
"""Rows of a file: the default of `--block-size`, and what is recommended for very many images."""
_SIZES = ((640, 480), (2048, 1536), (4000, 3000))
_SIDE = 224
_CONTRAST, _COLOUR = 50.0, 0.3  # standard deviation in grey levels; share of it in each colour alone
_SAVED: dict[str, dict[str, int]] = {"JPEG": {"quality": 85, "subsampling": 2}, "PNG": {}, "WEBP": {"quality": 85}}


def photo(width: int, height: int, *, seed: int = 0) -> Image.Image:
    """Noise with the spectrum of photographs: amplitudes fall as 1 ÷ frequency, more in lightness than in colour."""
    rng = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(height)[:, np.newaxis], np.fft.rfftfreq(width)[np.newaxis]).astype(np.float32)
    frequency[0, 0] = 1.0

    def plane() -> npt.NDArray[np.float32]:
        noise = np.fft.rfft2(rng.standard_normal((height, width), np.float32)) / frequency
        shaped = np.fft.irfft2(noise, s=(height, width)).astype(np.float32)
        shaped /= shaped.std()
        return shaped

    light = plane()
    pixels = np.stack([128 + _CONTRAST * (light + _COLOUR * plane()) for _ in range(3)], axis=-1)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def decoding(folder: Path, seconds: float) -> Costs:
    """CPU time of the job's decoding stage by format and size, on one thread for about `seconds` each: fetching from a
    local disk, hashing, decoding and cropping. Then the bytes of a crop in the table that it returns.
    """
    largest = photo(*_SIZES[-1])
    costs: Costs = {}
    ways = {"JPEG": {"at reduced scale": True, "in full": False}, "PNG": {"": True}, "WEBP": {"": True}}
    for kind, (width, height) in [*(("JPEG", size) for size in _SIZES), ("PNG", _SIZES[1]), ("WEBP", _SIZES[1])]:
        path = folder / f"{width}.{kind.lower()}"
        largest.crop((0, 0, width, height)).save(path, kind, **_SAVED[kind])
        what = f"decode a {kind} of {width} × {height} ({path.stat().st_size / 1e6:.3g} MB)"
        costs[what, "CPU ms"] = {way: _decode_ms(path, draft, seconds) for way, draft in ways[kind].items()}
    table = _decoded(path, draft=True)
    costs[f"a crop of {_SIDE} × {_SIDE}, from decoding to the model", "bytes"] = {"": table.nbytes / table.num_rows}
    return costs


def _decode_ms(path: Path, draft: bool, seconds: float) -> float:
    """CPU milliseconds per picture."""
    _decoded(path, draft)
    done, started, cpu = 0, time.perf_counter(), _cpu_seconds()
    while time.perf_counter() - started < seconds:
        done += _decoded(path, draft).num_rows
    return (_cpu_seconds() - cpu) * 1e3 / done


def _cpu_seconds() -> float:
    """CPU time of this process and of those that decode for it."""
    here = psutil.Process()
    return sum(sum(each.cpu_times()[:2]) for each in (here, *here.children(recursive=True)))


def _decoded(path: Path, draft: bool) -> pa.Table:
    listing = listing_table({"image_id": ["picture"] * 8, "uri": [str(path)] * 8}, {})
    settings = DecodeSettings(crop=CropSpec(side=_SIDE, shortest_edge=_SIDE), draft=draft, threads=1)
    table = fetch_and_decode(listing, settings=settings)
    if table["pixels"].null_count:
        raise RuntimeError(f"{path} was not decoded: {table['error_message'][0]}")
    return table


def row_bytes(folder: Path) -> Costs:
    """Bytes of a row by dimensions and rows per file, with the usual columns; then bytes of a file in a list."""
    collection = Collection.create_or_open(str(folder))
    costs, entry_bytes = Costs(), 0.0
    for dim in (64, 512, 768):
        start = collection.start_run("memory:", model_of(dim))
        table, by_block = usual_rows(range(BLOCKS[-1]), dim), dict[str, float | str]()
        for block in BLOCKS:
            # Names as long as the job's.
            parts = {f"0001-0a1b2c3d-{first:020}": table.slice(first, block) for first in range(0, BLOCKS[-1], block)}
            files = [collection.write_rows(start.run_id, name, part) for name, part in parts.items()]
            by_block[f"in files of {block}"] = sum(file.size for file in files) / table.num_rows
            if len(files) > 1:
                entry_bytes = FileList.write(collection.storage, start.run_id, files).size / len(files)
        costs[f"a row of {dim} dimensions in Parquet", "bytes"] = by_block
    return {**costs, ("a row file in its run's list of files", "bytes"): {"": entry_bytes}}
