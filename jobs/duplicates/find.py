"""Finds duplicates of each kind: by content hashes, by pixels where vectors propose pairs, and by vectors alone."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from embedder.images.signature import Signature
from index.analysis.duplicate_plan import KINDS, Duplicate, DuplicatePlan, Kind, PlannedGroup, PlannedImage, count_kinds
from index.analysis.duplicates import near_duplicates, nearest_pairs
from index.collection.rows import text_array
from index.search import Searcher
from index.segments.segmented_index import SegmentedIndex
from jobs.duplicates.preference import preference, reason
from jobs.duplicates.same_picture import compare
from jobs.values import MAX_DIFFERENCE, MIN_SIMILARITY

_ON_PIXELS: Final = frozenset({"identical_pixels", "re_encoded", "cropped"})
_COLUMNS: Final = ("image_id", "uri", "content_hash", "width", "height", "format", "size", "modified")
# The pairs whose pixels are compared: of each picture so many neighbours, with this cosine or more.
_NEIGHBOURS: Final = 16
_MIN_SCORE: Final = 0.9
_ROWS: Final = 16_384  # whose hashes are read at a time
_PICTURES: Final = 512  # whose files are read at a time

ReadSignatures = Callable[[Sequence[dict[str, Any]]], Sequence[Signature | str]]
Progress = Callable[[str, int, int], None]


@dataclass(eq=False)
class _Picture:
    """A file's content: the best row that has it, the others with the very same bytes, and the content's signature."""

    position: int
    facts: dict[str, Any]
    twins: list[dict[str, Any]]
    signature: Signature | None = None
    neighbours: list["_Picture"] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Finder:
    """Makes the plan of an index version. `read` gets the pictures that may be copies on pixels.

    `kinds` are looked for. Up to `max_difference` on pixels is the same picture, `min_score` and more is a similar one.
    `progress` gets what is counted, how many of it are done, and of how many.
    """

    searcher: Searcher
    read: ReadSignatures
    kinds: Sequence[Kind] = KINDS
    min_score: float = MIN_SIMILARITY
    max_difference: float = MAX_DIFFERENCE
    progress: Progress = lambda *_: None
    unread: Counter[str] = field(default_factory=Counter)

    def plan(self) -> DuplicatePlan:
        """The groups, those with most duplicates first. Each duplicate was compared with the picture that is kept."""
        twins = self._same_bytes()
        groups = list(self._copies(twins))
        copies = {duplicate.image_id for group in groups for duplicate in group.duplicates}
        if "similar" in self.kinds:
            groups += self._similar(copies)
        groups.sort(key=lambda group: (-len(group.duplicates), group.keep.image_id))
        return DuplicatePlan(
            version=self.searcher.version,
            created_at=datetime.now(UTC),
            looked_for=tuple(kind for kind in KINDS if kind in self.kinds),
            min_score=self.min_score,
            max_difference=self.max_difference,
            groups=len(groups),
            duplicates=count_kinds(groups),
            unread=dict(self.unread),
            found=tuple(groups),
        )

    @property
    def _segments(self) -> SegmentedIndex:
        return self.searcher.segments

    def _same_bytes(self) -> list[list[int]]:
        """The positions of all live rows; those of the same bytes together."""
        positions = self._segments.live_positions()
        by_hash: dict[Any, list[int]] = defaultdict(list)
        for start in range(0, len(positions), _ROWS):
            block = positions[start : start + _ROWS]
            for position, row in zip(block.tolist(), self._segments.rows(block, ["content_hash"]), strict=True):
                by_hash[row["content_hash"] or position].append(position)
        return list(by_hash.values())

    def _copies(self, twins: list[list[int]]) -> Iterator[PlannedGroup]:
        pairs: list[tuple[int, int]] = []
        if _ON_PIXELS & set(self.kinds):
            firsts = np.array([same[0] for same in twins], np.int64)
            pairs = list(nearest_pairs(self._segments, firsts, _MIN_SCORE, _NEIGHBOURS))
        paired = {position for pair in pairs for position in pair}
        wanted = [same for same in twins if len(same) > 1 or same[0] in paired]
        pictures = {same[0]: self._picture(same) for same in wanted}
        for one, other in pairs:
            pictures[one].neighbours.append(pictures[other])
            pictures[other].neighbours.append(pictures[one])
        done = 0
        for component in _batches(_components(pictures.values())):
            if pairs:
                self._sign([picture for picture in component if picture.neighbours])
            yield from self._groups(component)
            for picture in component:
                picture.signature = None  # which has 12 KiB
            done += len(component)
            self.progress("pictures compared", done, len(pictures))

    def _picture(self, positions: list[int]) -> _Picture:
        facts = self._segments.rows(np.array(positions), _COLUMNS)
        best, *others = sorted(facts, key=preference)
        return _Picture(positions[0], best, others)

    def _sign(self, pictures: Sequence[_Picture]) -> None:
        for picture, found in zip(pictures, self.read([picture.facts for picture in pictures]), strict=True):
            if isinstance(found, str):
                self.unread[found] += 1
                continue
            picture.signature = found
            for facts in (picture.facts, *picture.twins):
                facts |= {"exif": found.exif, "lossless": found.lossless}

    def _groups(self, pictures: Iterable[_Picture]) -> Iterator[PlannedGroup]:
        """The best picture with its copies, then the best of the others, until none is left."""
        _link_same_pixels(pictures)
        left = dict.fromkeys(sorted(pictures, key=lambda picture: preference(picture.facts)))
        while left:
            kept = next(iter(left))
            duplicates = [duplicate for found in self._copies_of(kept, left) for duplicate in found]
            if duplicates:
                yield PlannedGroup(keep=PlannedImage(**kept.facts), duplicates=tuple(duplicates))

    def _copies_of(self, kept: _Picture, left: dict[_Picture, None]) -> Iterator[list[Duplicate]]:
        """What is a copy of `kept` among its neighbours, theirs, and so on; taken out of `left`."""
        del left[kept]
        yield self._duplicates(kept, kept.twins, "identical_bytes", 0.0)
        edge, seen = [kept], {kept}
        for near in edge:
            for other in near.neighbours:
                if other in seen or other not in left:
                    continue
                seen.add(other)
                kind, difference = self._kind(kept, other)
                if kind in self.kinds and difference <= self.max_difference and difference < 1:
                    del left[other]
                    edge.append(other)
                    yield self._duplicates(kept, [other.facts, *other.twins], kind, difference)

    def _duplicates(
        self, kept: _Picture, others: Iterable[dict[str, Any]], kind: Kind, difference: float
    ) -> list[Duplicate]:
        return [_duplicate(kept.facts, facts, kind, difference) for facts in others if kind in self.kinds]

    def _kind(self, kept: _Picture, other: _Picture) -> tuple[Kind, float]:
        """What `other` is to the picture that is kept, and how much their pixels differ: 1.0 if it is not a copy."""
        one, two = kept.signature, other.signature
        if one is None or two is None or one.digest is None or two.digest is None:
            return "similar", 1.0
        if one.digest == two.digest:
            return "identical_pixels", 0.0
        difference, cropped = compare(one.pixels.astype(np.float32), two.pixels.astype(np.float32))
        return "cropped" if cropped else "re_encoded", round(difference, 4)

    def _similar(self, copies: set[str]) -> Iterator[PlannedGroup]:
        """Groups by vectors, of what is not a copy of another."""

        def show(done: int, total: int) -> None:
            self.progress("images looked up", done, total)

        for group in near_duplicates(self.searcher, self.min_score, progress=show):
            scores = {name: score for name, score in zip(group.ids, group.scores, strict=True) if name not in copies}
            if len(scores) < 2:
                continue
            rows = self._segments.rows(self._segments.positions(text_array(scores)), _COLUMNS)
            kept, *others = sorted(rows, key=preference)
            similar = [_duplicate(kept, row, "similar", score=scores[row["image_id"]]) for row in others]
            yield PlannedGroup(keep=PlannedImage(**kept), duplicates=tuple(similar))


def _duplicate(
    kept: dict[str, Any], other: dict[str, Any], kind: Kind, difference: float | None = None, score: float | None = None
) -> Duplicate:
    return Duplicate(**other, kind=kind, why=reason(kept, other), difference=difference, score=score)


def _link_same_pixels(pictures: Iterable[_Picture]) -> None:
    """A picture may have more copies than neighbours."""
    firsts: dict[str, _Picture] = {}
    for picture in pictures:
        if picture.signature and picture.signature.digest:
            first = firsts.setdefault(picture.signature.digest, picture)
            first.neighbours.append(picture)
            picture.neighbours.append(first)


def _components(pictures: Iterable[_Picture]) -> Iterator[list[_Picture]]:
    """The pictures that pairs link, together."""
    left = dict.fromkeys(pictures)
    while left:
        found = [next(iter(left))]
        del left[found[0]]
        for picture in found:
            for other in picture.neighbours:
                if other in left:
                    del left[other]
                    found.append(other)
        yield found


def _batches(components: Iterable[list[_Picture]]) -> Iterator[list[_Picture]]:
    """Several small components together, so that their files are read side by side."""
    batch: list[_Picture] = []
    for component in components:
        batch += component
        if len(batch) >= _PICTURES:
            yield batch
            batch = []
    if batch:
        yield batch
