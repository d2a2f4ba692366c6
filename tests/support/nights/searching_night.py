"""A night with saved searches, whose images are made by hand: `python -m …searching_night COLLECTION URL NIGHT`.

It prints a line once it begins, to be killed from then on.
"""

import sys

import numpy as np
import numpy.typing as npt
from rich.console import Console

from index.builder.build_index import build_index
from index.collection import Collection, writing
from jobs.annotation.annotate import Annotate
from jobs.embedding.report import Report
from jobs.fields import Target
from jobs.schedule.saved_searches import run_searches
from jobs.search_spec import SearchSpec
from tests.support.collections.hand_made import add_run, hashed, rows, unit_vectors

IMAGES, CUT = 30, 0.3
NAMES = ("odd", "even")


def vectors_of_night(night: int) -> npt.NDArray[np.float32]:
    return unit_vectors(IMAGES, 100 + night)


def ids_of_night(night: int) -> list[str]:
    return [f"{night:03}/{number:02}" for number in range(IMAGES)]


def searches(url: str | None) -> list[SearchSpec]:
    """Each looks for images like one of the first night."""
    target = None if url is None else Target(url=url)
    ids = zip(NAMES, ids_of_night(0), strict=False)
    return [SearchSpec(name=name, image_id=image_id, min_score=CUT, notify=target) for name, image_id in ids]


def search(collection: Collection, specs: list[SearchSpec], **more: object) -> Report:
    """Run saved searches that need no model."""
    report = Report(collection=collection.location)
    with writing(collection, "search") as leased:
        job = Annotate(collection=leased, console=Console(quiet=True))
        run_searches(job, specs, more.get("load"), report)  # type: ignore[arg-type]
    return report


def night(collection: Collection, number: int, specs: list[SearchSpec]) -> Report:
    """Add the images of a night unless they are there, index them and run the searches."""
    ids = ids_of_night(number)
    if ids[0] not in collection.live_rows(["image_id"])["image_id"].to_pylist():
        add_run(collection, hashed(rows(ids, vectors_of_night(number))))
    build_index(collection)
    return search(collection, specs)


if __name__ == "__main__":
    print("begun", flush=True)
    night(Collection.open(sys.argv[1]), int(sys.argv[3]), searches(sys.argv[2]))
