"""Comparison with clip-retrieval on the same pictures and checkpoint: `python -m benchmarks.peers FOLDER [--quick]`.

FOLDER is a virtual environment with clip-retrieval 2.45, which needs other versions of numpy and pyarrow than Likeness:

    python -m venv FOLDER && FOLDER/bin/pip install clip-retrieval==2.45.0 'setuptools<81' 'transformers<5'

The model has ViT-B/32's size and random weights. The benchmark measures complete commands from a cold start, ours with
the index (in fp32, and in the fastest precision) and clip-retrieval's inference without one, the cost of each
additional picture, and searches by one client that uploads pictures.
"""

import base64
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import requests
from PIL import Image

from benchmarks.common.process import likeness, run_command, seconds_of
from benchmarks.common.report import Report, run
from benchmarks.common.servers import free_port, running, serving
from benchmarks.embed.rates import forward_rate
from benchmarks.models.random_models import save_clip
from benchmarks.precision import photographs
from embedder.identity import Precision
from embedder.models.clip import ClipEmbedder
from embedder.models.load import load_embedder

INFERENCE, BACK = "clip-retrieval inference", "clip-retrieval back"
EMBED, SERVE = {"fp32": "likeness embed, fp32", "auto": "likeness embed"}, "likeness serve --local"
PRECISIONS: tuple[Precision, ...] = ("fp32", "auto")
FIRST = 400
_SIDE = 256
_VOCABULARY = 49_408  # of CLIP's own tokenizer, with which clip-retrieval warms up the model


def draw(folder: Path, count: int) -> Path:
    """Write `count` JPEGs, all different, because Likeness embeds the same bytes only once."""
    folder.mkdir()
    for number, pixels in enumerate(photographs(count, _SIDE)):
        Image.fromarray(pixels).save(folder / f"{number:05}.jpg", quality=85)
    return folder


def index(environment: Path, vectors: Path, out: Path) -> None:
    """Build the index that `clip-retrieval back` serves."""
    run_command(_command(environment, "index", embeddings_folder=vectors, index_folder=out), _offline())
    for path in (out / "metadata").glob("*.parquet"):  # its answers need a column
        rows = pq.read_table(path)
        pq.write_table(rows.append_column("caption", rows["image_path"]), path)


def our_latency(collection: Path, pictures: list[Path], precision: Precision) -> float:
    """Median seconds of a search by an uploaded picture."""
    settings = {"precision": precision, "embedding_cache_bytes": 0}
    with (
        tempfile.NamedTemporaryFile() as log,
        serving(str(collection), Path(log.name), "--local", **settings) as server,
    ):
        return _median(
            [partial(_post, f"{server.url}/search", files={"image": each.read_bytes()}) for each in pictures]
        )


def their_latency(environment: Path, model: dict[str, object], folder: Path, pictures: list[Path]) -> float:
    """The same for clip-retrieval's back end, which takes pictures as base64."""
    paths = folder / "indices.json"
    paths.write_text(json.dumps({"pictures": str(folder)}))
    port = free_port()
    options = {
        "indices_paths": paths,
        "port": port,
        "enable_mclip_option": False,
        "provide_aesthetic_embeddings": False,
    }
    answer = {"columns_to_return": '["caption"]'}  # for image_path it would read and send the pictures
    command = _command(environment, "back", **model, **options, **answer)
    with running(command, port, folder / "back.log", _offline(), ready="/indices-list") as server:
        return _median([partial(_post, f"{server.url}/knn-service", json=_knn(each)) for each in pictures])


def judge_walls(counts: Sequence[int], walls: Mapping[tuple[str, int], float], forward: float, report: Report) -> None:
    """Add the table of complete commands, and the bars for our share of the other's time."""
    first, last = counts
    names = [*EMBED.values(), INFERENCE]
    rates = {name: (last - first) / (walls[name, last] - walls[name, first]) for name in names}
    report.table(
        "from a cold start",
        {
            name: {
                **{f"s for {count:,}": walls[name, count] for count in counts},
                "further images/s": rates[name],
                "÷ bare forward pass of torch": rates[name] / forward,
            }
            for name in names
        },
    )
    bars = {(EMBED["fp32"], first): 0.35, (EMBED["fp32"], last): 0.8, (EMBED["auto"], last): 0.45}
    for (name, count), bar in bars.items():
        share = walls[name, count] / walls[INFERENCE, count]
        report.at_most(f"{name}: seconds for {count:,} ÷ clip-retrieval's", share, bar)


def _command(environment: Path, verb: str, **options: object) -> list[str]:
    return [
        str(environment / "bin" / "clip-retrieval"),
        verb,
        *(f"--{name}={value}" for name, value in options.items()),
    ]


def _offline() -> dict[str, str]:
    return {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}


def _post(url: str, **content: Any) -> None:
    requests.post(url, timeout=60, **content).raise_for_status()


def _knn(picture: Path) -> dict[str, object]:
    image = base64.b64encode(picture.read_bytes()).decode()
    return {"image": image, "modality": "image", "num_images": 10, "indice_name": "pictures"}


def _median(asks: Sequence[Callable[[], None]]) -> float:
    for ask in asks[:10]:
        ask()
    return statistics.median(map(seconds_of, asks))


def main(report: Report, folder: Path, options: Any) -> None:
    counts, walls = [FIRST, 800 if options.quick else 4_000], dict[tuple[str, int], float]()
    model = save_clip(folder / "model", vocabulary=_VOCABULARY)
    environment, their_model = options.environment.absolute(), {"clip_model": f"hf_clip:{model}", "use_jit": False}

    def theirs(pictures: Path, out: Path) -> float:
        """Write the folder of vectors that `clip-retrieval index` reads; returns the seconds."""
        paths = {"input_dataset": pictures, "output_folder": out, "enable_text": False}
        return run_command(_command(environment, "inference", **their_model, **paths), _offline()).seconds

    # Converts the model, and loads clip-retrieval's files into the system's cache.
    for precision in PRECISIONS:
        load_embedder(str(model), device="cpu", precision=precision)
    theirs(draw(folder / "few", 8), folder / "few-theirs")
    for count in counts:
        pictures = draw(folder / f"{count}", count)
        for precision in PRECISIONS:
            out = str(folder / f"{precision}-{count}")
            done = likeness("embed", str(pictures), out, "--model", str(model), "--precision", precision)
            walls[EMBED[precision], count] = done.seconds
        walls[INFERENCE, count] = theirs(pictures, folder / f"theirs-{count}")
    forward = forward_rate(model, ClipEmbedder.load, batch=32, seconds=10, device="cpu")
    judge_walls(counts, walls, forward, report)
    index(environment, folder / f"theirs-{counts[-1]}", folder / "index")
    queries = sorted(pictures.iterdir())[:60]
    p50 = {BACK: their_latency(environment, their_model, folder / "index", queries)}
    for precision in PRECISIONS:
        name = f"{SERVE}, {precision}"
        p50[name] = our_latency(folder / f"{precision}-{counts[-1]}", queries, precision)
        report.at_most(f"{name}: p50 ÷ clip-retrieval's", p50[name] / p50[BACK], 0.7)
    report.values("a search by a picture: p50 ms", {name: 1e3 * seconds for name, seconds in p50.items()})


ENVIRONMENT = {"type": Path, "metavar": "FOLDER", "help": "the virtual environment with clip-retrieval"}
if __name__ == "__main__":
    run("peers", __doc__, main, "800 pictures instead of 4,000", {"environment": ENVIRONMENT})
