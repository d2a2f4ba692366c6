"""How long a command takes to start, and a server to its first answer: `python -m benchmarks.startup [--quick]`.

Each runs in new processes and is given as a multiple of `import torch` in the same run, because machines differ and a
search by a picture or by words once had to import torch.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import requests

from benchmarks.common.process import by_turns, seconds_of
from benchmarks.common.report import Report, run
from benchmarks.common.servers import serving
from jobs.demo.collection import make_demo_collection

TORCH, FIRST_ANSWER = "import torch", "serve --local, first answer"
BARS = {"--help": 0.2, "search, by id": 0.5, "search, by words": 1.0, "search, by a picture": 1.0, FIRST_ANSWER: 1.2}
"""Maximum time of each, as a multiple of `import torch`."""
WORDS = "a striped red star"
SEARCHES = 50
MAX_MIB = 300
"""0.6 of the memory that such a server needed when it loaded torch and transformers."""


def commands(collection: str, image_id: str, picture: Path) -> dict[str, Callable[[], float]]:
    """The measured commands by name; each runs once and returns its seconds."""

    def python(*arguments: str) -> Callable[[], float]:
        run = partial(subprocess.run, [sys.executable, *arguments], check=True, capture_output=True)
        return partial(seconds_of, run)

    search = partial(python, "-m", "likeness", "search", collection)
    return {
        TORCH: python("-c", TORCH),
        "--help": python("-m", "likeness", "--help"),
        "search, by id": search("--like", image_id),
        "search, by words": search("--text", WORDS),
        "search, by a picture": search(str(picture)),
        FIRST_ANSWER: partial(first_answer, collection),
    }


def first_answer(collection: str) -> float:
    """Seconds from the start of a local server to its first answer to a search by words."""
    started = time.perf_counter()
    with tempfile.NamedTemporaryFile() as log, serving(collection, Path(log.name), "--local") as server:
        requests.post(f"{server.url}/search", json={"text": WORDS}, timeout=60).raise_for_status()
        return time.perf_counter() - started


def memory(collection: str, picture: Path) -> float:
    """Memory of a local server and its decoders in MiB, after searches by words and by a picture."""
    with tempfile.NamedTemporaryFile() as log, serving(collection, Path(log.name), "--local") as server:
        for _ in range(SEARCHES):
            requests.post(f"{server.url}/search", json={"text": WORDS}, timeout=60).raise_for_status()
            files = {"image": picture.read_bytes()}
            requests.post(f"{server.url}/search", files=files, timeout=60).raise_for_status()
        return server.resident_mib()


def judge(medians: Mapping[str, float], mib: float, report: Report) -> None:
    """Add the table and the bars."""
    torch = medians[TORCH]
    table = {name: {"s": took, f"÷ {TORCH}": took / torch} for name, took in medians.items()}
    report.table("from the command to its end", table)
    for name, bar in BARS.items():
        report.at_most(f"{name}: seconds ÷ those of {TORCH}", medians[name] / torch, bar)
    report.at_most(f"serve --local: MiB after {2 * SEARCHES} searches", mib, MAX_MIB)


def main(report: Report, folder: Path, options: Any) -> None:
    collection = make_demo_collection(folder)
    [image_id, *_] = collection.live_rows(["image_id"])["image_id"].to_pylist()
    picture = folder / "pictures" / str(image_id)
    medians = by_turns(commands(collection.location, str(image_id), picture), 5 if options.quick else 15)
    judge(medians, memory(collection.location, picture), report)


if __name__ == "__main__":
    run("startup", __doc__, main, "5 rounds, not 15")
