"""A folder of pictures that changes every night, its collection, and a server that answers from that all the while."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import requests

from benchmarks.common.load import Asked
from benchmarks.common.servers import Server, eventually, serving
from jobs.embedding.report import Report
from tests.support.nights.reembed_nights import DEMO, Nights, bmp

_QUERIES = 12


@dataclass
class ServedNights:
    """`answers` are the versions that may answer, with their model and size. `queries` is a folder of pictures."""

    nights: Nights
    served: Server
    queries: Path
    answers: dict[str, tuple[str, int]]
    drawn: int

    def change(self, count: int) -> None:
        """Draw, edit, move and delete so many pictures each: afterwards there are as many as before."""
        files = sorted(self.nights.pictures.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        edited, moved, deleted = (files[count * part : count * (part + 1)] for part in range(3))
        for path in moved:
            path.rename(path.with_name(f"{self._next()}.bmp"))
        for path in deleted:
            path.unlink()
        for path in edited:
            path.write_bytes(bmp(self._next()))
        for _ in range(count):
            number = self._next()
            (self.nights.pictures / f"{number}.bmp").write_bytes(bmp(number))

    def night(self, model: str | None = None) -> Report:
        """A night that ends when the server answers with what it made."""
        report = self.nights.night(model)
        self.await_version()
        return report

    def await_version(self) -> None:
        """Wait until the live version answers."""
        version = self._note()
        eventually(partial(self._answers, version), f"{version} answers", seconds=60)

    def require_answered(self, asked: list[Asked]) -> set[str]:
        """That no search failed, and each answer is of one version, with its own model; the versions that answered."""
        failed = Counter((each.status, each.body) for each in asked if each.status != 200)
        assert not failed, f"of {len(asked)} searches failed, by status and answer: {failed}"
        versions = set()
        for each in asked:
            index, model = each.answer["index"], each.answer["model"]
            assert (model["fingerprint"], index["ntotal"]) == self.answers[index["version"]], each
            versions.add(index["version"])
        return versions

    def found(self) -> list[str]:
        """The ids of all that a search finds, in order."""
        with (self.queries / "0.bmp").open("rb") as file:
            answer = requests.post(f"{self.served.url}/search", files={"image": file}, data={"k": "1000"}, timeout=60)
        answer.raise_for_status()
        return sorted(match["image_id"] for match in answer.json()["matches"])

    def there(self) -> list[str]:
        """The ids that are to be found."""
        return sorted(path.name for path in self.nights.pictures.iterdir())

    def _note(self) -> str:
        collection = self.nights.collection
        manifest = collection.read_version(str(collection.current()))
        self.answers[manifest.version] = (manifest.model.fingerprint, manifest.ntotal)
        return manifest.version

    def _answers(self, version: str) -> bool:
        return self.served.version() == version

    def _next(self) -> int:
        self.drawn += 1
        return self.drawn


@contextmanager
def served_nights(folder: Path, location: str, *, pictures: int) -> Iterator[ServedNights]:
    """So many pictures below `folder`, embedded into the collection at `location`, and `likeness serve --local`."""
    for name, count in (("pictures", pictures), ("queries", _QUERIES)):
        (folder / name).mkdir()
        for number in range(count):
            (folder / name / f"{number}.bmp").write_bytes(bmp(number))
    nights = Nights(folder / "pictures", location, block=64)
    nights.night(DEMO)
    # A server that has a picture's vector in its cache would not need its model.
    settings = {"embedding_cache_bytes": 0, "swap_interval_s": 0.2}
    with serving(location, folder / "log", "--local", **settings) as served:
        made = ServedNights(nights=nights, served=served, queries=folder / "queries", answers={}, drawn=pictures)
        made.await_version()
        yield made
