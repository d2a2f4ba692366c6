"""Jobs on a failing S3 server: a source of pictures, and a check that its collection is always complete."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from index.collection import Collection
from index.storage import Storage
from index.versions.files import version_files
from tests.support.collections.s3_server import Bucket
from tests.support.nights.reembed_nights import bmp

REQUEST_S = 1.0
"""A body may take twice as long, so one that trickles in over 2.5 s is late as well."""


@dataclass
class Source:
    """Pictures by name, in a folder or below `pictures/` of a bucket."""

    place: Path | Bucket

    @property
    def address(self) -> str:
        return str(self.place) if isinstance(self.place, Path) else f"s3://{self.place.name}/pictures"

    def write(self, name: str, seed: int) -> None:
        if isinstance(self.place, Path):
            (self.place / name).parent.mkdir(parents=True, exist_ok=True)
            (self.place / name).write_bytes(bmp(seed))
        else:
            self.place.put(f"pictures/{name}", bmp(seed))

    def remove(self, name: str) -> None:
        if isinstance(self.place, Path):
            (self.place / name).unlink()
        else:
            self.place.client.delete_object(Bucket=self.place.name, Key=f"pictures/{name}")

    def change(self) -> None:
        """Add, replace and remove three pictures each: there are as many as before."""
        for number in range(3):
            self.write(f"{number % 4}/new-{number}.bmp", 200 + number)
            self.write(f"{number % 4}/{number}.bmp", 300 + number)
            self.remove(f"{(number + 4) % 4}/{number + 4}.bmp")


@contextmanager
def watched(bucket: Bucket, location: str) -> Iterator[Counter[str]]:
    """Reads the collection all the while through a connection without faults; everything visible must be complete."""
    seen: Counter[str] = Counter()
    wrong: list[str] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            try:
                wrong.extend(_incomplete_files(bucket, location, seen))
            except Exception as error:
                wrong.append(repr(error))
            if wrong:
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
    assert wrong == []


def _incomplete_files(bucket: Bucket, location: str, seen: Counter[str]) -> list[str]:
    """Files that a manifest or CURRENT names and that are not complete. Manifests are read before files are listed."""
    if "collection/.lease" not in bucket.keys("collection/"):
        return []
    collection = Collection(Storage.open(location))
    live = collection.current()
    named: dict[str, int] = {}
    manifests = [collection.read_version(name) for name in collection.versions()]
    for manifest in manifests:
        named |= {path: record.size for path, record in version_files(manifest).items()}
    for run in collection.runs():
        files = [*collection.files_of(run), run.files, *run.facts]
        named |= {file.path: file.size for file in files}
    pages = bucket.client.get_paginator("list_objects_v2").paginate(Bucket=bucket.name, Prefix="collection/")
    sizes = {entry["Key"].removeprefix("collection/"): entry["Size"] for page in pages for entry in page["Contents"]}
    seen.update({"reads": 1, f"live {live}": 1})
    wrong = [f"{path}: {sizes.get(path)} of {size} bytes" for path, size in named.items() if sizes.get(path) != size]
    if live and live not in [manifest.version for manifest in manifests]:
        wrong.append(f"CURRENT names {live}, which is not complete")
    return wrong
