"""What an image costs up to its row: fetched, decoded, embedded, written."""

from __future__ import annotations

import time
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from PIL import Image

from benchmarks.reembed.rows import usual_images
from benchmarks.scale.costs import Decoding, Model, RowBytes
from embedder.images import CropSpec
from index.collection import Collection
from index.collection.records import ModelRecord, RowFile, RunManifest, RunStart
from jobs.embedding.decode import DecodeSettings, fetch_and_decode
from jobs.sources.listing import listing_table

BLOCKS = (256, 4096)
"""Rows of a file: what `--block-size` is by default, and what it should be for very many images."""
_SIZES = ((640, 480), (2048, 1536), (4000, 3000))
_SIDE = 224
_CONTRAST, _COLOUR = 50.0, 0.3  # grey levels (standard deviation); of it in each colour by itself
_SAVED = {"JPEG": {"quality": 85, "subsampling": 2}, "PNG": {}, "WEBP": {"quality": 85}}


def photo(width: int, height: int, *, seed: int = 0) -> Image.Image:
    """Noise with the spectrum of photographs, amplitudes falling as 1 ÷ frequency, mostly of light, less of colour."""
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


def decoding(folder: Path, seconds: float) -> tuple[list[Decoding], float]:
    """Of each format and size what the job's own stage takes, on one thread and for about so many seconds each; and
    the bytes of one picture in the table that it returns.
    """
    largest = photo(*_SIZES[-1])
    crops = [largest.crop((0, 0, *size)) for size in _SIZES]
    asked = [(crop, "JPEG", draft) for crop in crops for draft in (True, False)]
    asked += [(crops[1], "PNG", True), (crops[1], "WEBP", True)]
    found = [_decoded(folder, picture, kind, draft, seconds) for picture, kind, draft in asked]
    return [each for each, _ in found], found[0][1]


def _decoded(folder: Path, picture: Image.Image, kind: str, draft: bool, seconds: float) -> tuple[Decoding, float]:
    data = BytesIO()
    picture.save(data, kind, **_SAVED[kind])
    path = folder / f"{picture.width}.{kind.lower()}"
    path.write_bytes(data.getvalue())
    listing = listing_table({"image_id": ["picture"] * 8, "uri": [str(path)] * 8}, {})
    settings = DecodeSettings(crop=CropSpec(side=_SIDE, shortest_edge=_SIDE), draft=draft, threads=1)
    table = fetch_and_decode(listing, settings=settings)
    if table["pixels"].null_count:
        raise RuntimeError(f"{path} was not decoded: {table['error_message'][0]}")
    done, started, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - started < seconds:
        done += fetch_and_decode(listing, settings=settings).num_rows
    figures = Decoding(
        picture=f"{kind} 4:2:0" if kind == "JPEG" else kind,
        width=picture.width,
        height=picture.height,
        draft=draft,
        file_bytes=len(data.getvalue()),
        cpu_ms=(time.process_time() - cpu) * 1e3 / done,
    )
    return figures, table.nbytes / table.num_rows


def forward(name: str, model: str, batch: int, seconds: float) -> Model:
    """One model's share of a core for each image of a batch."""
    # Imported here: Ray and torch take seconds, and memory that nothing else should be charged with.
    from benchmarks.embed.__main__ import forward_rate
    from benchmarks.embed.tutorial import CORES
    from embedder.models.clip import ClipEmbedder

    side = ClipEmbedder.load(model, device="cpu").crop.side
    rate = forward_rate(Path(model), batch=batch, seconds=seconds, device="cpu")
    return Model(name=name, side=side, core_ms=1e3 * CORES / rate)


def row_bytes(folder: Path) -> tuple[list[RowBytes], float]:
    """Bytes of a row by dimensions and rows of a file, with the usual columns; bytes of a manifest for each file."""
    collection = Collection.create_or_open(str(folder))
    found, of_manifest = [], 0.0
    for dim in (64, 512, 768):
        model = ModelRecord(id="measured", revision=None, fingerprint="0" * 64, dim=dim)
        start = collection.start_run("memory:", model)
        table = _rows(BLOCKS[-1], dim)
        for block in BLOCKS:
            # Names as long as those that the job gives.
            parts = {f"0001-0a1b2c3d-{first:020}": table.slice(first, block) for first in range(0, BLOCKS[-1], block)}
            files = [collection.write_rows(start.run_id, name, part) for name, part in parts.items()]
            found.append(RowBytes(dim=dim, block=block, bytes=sum(file.size for file in files) / table.num_rows))
            if len(files) > 1:
                of_manifest = _manifest_bytes(start, files)
    return found, of_manifest


def _manifest_bytes(start: RunStart, files: list[RowFile]) -> float:
    """Bytes of a run's manifest for each of its files."""
    run = RunManifest(**start.model_dump(), finished_at=start.started_at, files=[], counts={})
    return (len(run.model_copy(update={"files": files}).to_bytes()) - len(run.to_bytes())) / len(files)


def _rows(count: int, dim: int) -> pa.Table:
    rng = np.random.default_rng(dim)
    vectors = rng.standard_normal((count, dim), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    table = usual_images(range(count))
    usual: dict[str, pa.Array[Any]] = {
        "content_hash": pa.array([rng.bytes(32).hex() for _ in range(count)]),
        "width": pa.array(np.full(count, _SIZES[1][0], np.int32)),
        "height": pa.array(np.full(count, _SIZES[1][1], np.int32)),
        "format": pa.array(["jpeg"] * count),
        "label": pa.array([f"album-{number // 1000:04}" for number in range(count)]),
        "embedding": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), dim),
    }
    for name, values in usual.items():
        table = table.append_column(name, values)
    return table
