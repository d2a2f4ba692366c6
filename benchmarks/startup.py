"""How long a command takes to start: `python -m benchmarks.startup [--quick]`.

Commands of the terminal in processes of their own, as multiples of `import torch` in the same run: machines differ, and
that is what a search by a picture or by words cannot do without.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.common.process import seconds_of
from benchmarks.common.report import Report
from jobs.demo.collection import make_demo_collection

TORCH = "import torch"
BARS = {"--help": 0.2, "search, by id": 0.5, "search, by words": 1.0, "search, by a picture": 1.0}
"""The most that each may take, as a multiple of `import torch`."""


def commands(folder: Path) -> dict[str, list[str]]:
    """What is measured, by name: the arguments of Python, on a small demo collection."""
    collection = make_demo_collection(folder)
    [image_id, *_] = collection.live_rows(["image_id"])["image_id"].to_pylist()
    search = ["-m", "jobs", "search", collection.location]
    return {
        TORCH: ["-c", TORCH],
        "--help": ["-m", "jobs", "--help"],
        "search, by id": [*search, "--like", str(image_id)],
        "search, by words": [*search, "--text", "a striped red star"],
        "search, by a picture": [*search, str(folder / "pictures" / str(image_id))],
    }


def measure(arguments: Mapping[str, Sequence[str]], rounds: int) -> dict[str, float]:
    """Median seconds of each command, by turns; the first round, which reads files from disk, does not count."""
    seconds = defaultdict[str, list[float]](list)
    for number in range(rounds + 1):
        for name, given in arguments.items():
            run = partial(subprocess.run, [sys.executable, *given], check=True, capture_output=True)
            took = seconds_of(run)
            if number:
                seconds[name].append(took)
    return {name: statistics.median(each) for name, each in seconds.items()}


def judge(medians: Mapping[str, float], report: Report) -> None:
    """The table, and a bar for each command."""
    torch = medians[TORCH]
    report.table(
        "from the command to its end",
        [{"command": name, "s": took, f"÷ {TORCH}": took / torch} for name, took in medians.items()],
    )
    for name, bar in BARS.items():
        report.at_most(f"{name}: seconds ÷ those of {TORCH}", medians[name] / torch, bar)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="5 rounds, not 15")
    options = parser.parse_args()
    report = Report("startup")
    with tempfile.TemporaryDirectory() as folder:
        judge(measure(commands(Path(folder)), 5 if options.quick else 15), report)
    return report.conclude()


if __name__ == "__main__":
    sys.exit(main())
