"""Finds duplicates of each kind: by content hash, by pixels among pairs that vectors propose, and by vectors alone."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import numpy as np

from index.analysis.duplicate_plan import KINDS, Duplicate, DuplicatePlan, Kind, PlannedGroup, PlannedImage, count_kinds
from index.analysis.duplicates import near_duplicates, nearest_pairs
from index.arrays import Positions
from index.collection.rows import text_array
from index.search import Searcher
from index.segments.segmented_index import SegmentedIndex
from jobs.duplicates.comparer import Comparer, Picture
from jobs.duplicates.local_files import local_file, one_path_each
from jobs.duplicates.picture_loader import PictureLoader
from jobs.values import MAX_DIFFERENCE, MIN_SIMILARITY

_REASONS: Final = ("more pixels", "lossless format", "larger file", "has EXIF", "older file", "first by name")
_LOSSLESS: Final = frozenset({"png", "gif", "bmp", "tiff", "raw"})
_NO_DATE: Final = datetime.max.replace(tzinfo=UTC)
_PIXEL_KINDS: Final = frozenset({"identical_pixels", "re_encoded", "cropped"})
_COLUMNS: Final = ("image_id", "uri", "content_hash", "width", "height", "format", "size", "modified")
_NEIGHBOURS: Final = 16  # of each picture, whose pixels are compared with it
_MIN_SCORE: Final = 0.9  # minimum cosine of such a neighbour
_ROWS: Final = 16_384  # hashes read at a time
_PICTURES: Final = 512  # files read at a time

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Finder:
    """Makes the plan of an index version.

    Pixels of copies differ by at most `max_difference`; similar pictures have a cosine of at least `min_score`.
    `progress` gets what is counted, how many are done, and the total. Files that were `moved` are left out.
    """

    searcher: Searcher
    loader: PictureLoader
    kinds: Sequence[Kind] = KINDS
    min_score: float = MIN_SIMILARITY
    max_difference: float = MAX_DIFFERENCE
    progress: Progress = lambda *_: None
    moved: Set[Path] = frozenset()
    unread: Counter[str] = field(default_factory=Counter, init=False)
    _moved_ids: set[str] = field(default_factory=set, init=False)
    _second_paths: set[str] = field(default_factory=set, init=False)

    def plan(self) -> DuplicatePlan:
        """The groups, largest first. Each copy was compared with the picture to keep."""
        groups = list(self._copies())
        copies = {duplicate.image_id for group in groups for duplicate in group.duplicates}
        if "similar" in self.kinds:
            groups += self._similar(copies | self._moved_ids | self._second_paths)
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
            second_paths=len(self._second_paths),
            found=tuple(groups),
        )

    @property
    def _segments(self) -> SegmentedIndex:
        return self.searcher.segments

    def _first_positions(self) -> tuple[Positions, dict[int, Positions]]:
        """The first position of each content, and all positions of those that have several, by their first."""
        positions = self._segments.live_positions()
        digests = np.empty(len(positions), "S16")  # shorter than the hashes, because there may be millions
        present = np.ones(len(positions), bool)
        for start in range(0, len(positions), _ROWS):
            block = positions[start : start + _ROWS]
            for number, row in enumerate(self._segments.rows(block, ["image_id", "uri", "content_hash"]), start):
                text = row["content_hash"] or f"position {positions[number]}"
                digests[number] = blake2b(text.encode(), digest_size=16).digest()
                if self.moved and local_file(row["uri"]) in self.moved:
                    present[number] = False
                    self._moved_ids.add(row["image_id"])
        positions, digests = positions[present], digests[present]
        order = np.argsort(digests, kind="stable")
        is_first = np.ones(len(order), bool)
        is_first[1:] = digests[order[1:]] != digests[order[:-1]]
        starts = np.flatnonzero(is_first)
        groups = np.split(positions[order], starts[1:])
        return np.sort(positions[order][starts]), {int(group[0]): group for group in groups if len(group) > 1}

    def _copies(self) -> Iterator[PlannedGroup]:
        firsts, repeated = self._first_positions()
        pairs: list[tuple[int, int]] = []
        if _PIXEL_KINDS & set(self.kinds):
            pairs = list(nearest_pairs(self._segments, firsts, _MIN_SCORE, _NEIGHBOURS))
        candidates = {position: np.array([position]) for pair in pairs for position in pair} | repeated
        pictures = {first: self._picture(candidates[first]) for first in sorted(candidates)}
        for one, other in pairs:
            _link(pictures[one], pictures[other])
        done = 0
        for batch in _batches(_components(pictures.values())):
            if pairs:
                self._read_signatures([picture for picture in batch if picture.neighbours])
            yield from self._groups(batch)
            for picture in batch:
                picture.signature = None  # frees 12 KiB
            done += len(batch)
            self.progress("pictures compared", done, len(pictures))

    def _picture(self, positions: Positions) -> Picture:
        rows = self._segments.rows(positions, _COLUMNS)
        facts, second_paths = one_path_each(rows) if len(rows) > 1 else (rows, [])
        self._second_paths.update(row["image_id"] for row in second_paths)
        best, *others = sorted(facts, key=_preference)
        return Picture(best, others)

    def _read_signatures(self, pictures: Sequence[Picture]) -> None:
        signatures = self.loader.signatures([picture.facts for picture in pictures])
        for picture, signature in zip(pictures, signatures, strict=True):
            if isinstance(signature, str):
                self.unread[signature] += 1
                continue
            picture.signature = signature
            for facts in (picture.facts, *picture.byte_copies):
                facts |= {"exif": signature.exif, "lossless": signature.lossless}

    def _groups(self, pictures: Iterable[Picture]) -> Iterator[PlannedGroup]:
        """The best picture with its copies, then the best of the others, and so on."""
        _link_same_pixels(pictures)
        remaining = dict.fromkeys(sorted(pictures, key=lambda picture: _preference(picture.facts)))
        while remaining:
            kept = next(iter(remaining))
            if duplicates := tuple(self._take_copies(kept, remaining)):
                yield PlannedGroup(keep=PlannedImage(**kept.facts), duplicates=duplicates)

    def _take_copies(self, kept: Picture, remaining: dict[Picture, None]) -> Iterator[Duplicate]:
        """Take `kept` out of `remaining`, and yield and take its copies among its neighbours, theirs, and so on."""
        del remaining[kept]
        if "identical_bytes" in self.kinds:
            yield from (_duplicate(kept.facts, facts, "identical_bytes", 0.0) for facts in kept.byte_copies)
        comparer = Comparer(
            kept=kept, kinds=self.kinds, limit=self.max_difference, loader=self.loader, unread=self.unread
        )
        group, compared = [kept], {kept}
        found = list[tuple[Picture, Kind, float]]()
        for member in group:
            others = dict.fromkeys(other for other in member.neighbours if other in remaining and other not in compared)
            compared.update(others)
            for other, kind, difference in comparer.copies(others):
                del remaining[other]
                group.append(other)
                found.append((other, kind, difference))
        nearer = [
            each for each, _, difference in found if self._is_nearer_to_another(each, kept, difference, remaining)
        ]
        if nearer:
            ordered = sorted([*remaining, *nearer], key=lambda picture: _preference(picture.facts))
            remaining.clear()
            remaining.update(dict.fromkeys(ordered))
        for other, kind, difference in found:
            if other not in remaining:
                copies = (other.facts, *other.byte_copies)
                yield from (_duplicate(kept.facts, facts, kind, difference) for facts in copies)

    def _is_nearer_to_another(
        self, other: Picture, kept: Picture, difference: float, remaining: dict[Picture, None]
    ) -> bool:
        """Whether a reduced copy differs less from a picture that is no copy of `kept`: at its size, pages of the same
        form may differ by less than copies do.
        """
        size = _pixels(other)
        if size >= _pixels(kept):
            return False
        rivals = [each for each in other.neighbours if each in remaining and _pixels(each) > size]
        comparer = Comparer(kept=other, kinds=self.kinds, limit=difference, loader=self.loader, unread=self.unread)
        return any(found < difference for _, _, found in comparer.copies(rivals))

    def _similar(self, copies: set[str]) -> Iterator[PlannedGroup]:
        """Groups by vectors, of images that are not copies."""
        progress = partial(self.progress, "images looked up")
        for group in near_duplicates(self.searcher, self.min_score, progress=progress):
            scores = {name: score for name, score in zip(group.ids, group.scores, strict=True) if name not in copies}
            if len(scores) < 2:
                continue
            rows = self._segments.rows(self._segments.positions(text_array(scores)), _COLUMNS)
            kept, *others = sorted(rows, key=_preference)
            similar = [_duplicate(kept, row, "similar", score=scores[row["image_id"]]) for row in others]
            yield PlannedGroup(keep=PlannedImage(**kept), duplicates=tuple(similar))


def _preference(facts: Mapping[str, Any]) -> tuple[Any, ...]:
    """A sort key, best picture first. `facts` are a row's columns, and `lossless` and `exif` if the file was read."""
    lossless = facts.get("lossless")
    return (
        -(facts["width"] or 0) * (facts["height"] or 0),
        not (facts["format"] in _LOSSLESS if lossless is None else lossless),
        -(facts["size"] or 0),
        not facts.get("exif"),
        facts["modified"] or _NO_DATE,
        facts["image_id"],
    )


def _reason(kept: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Why `kept` is preferred to `other`: the first criterion in which they differ."""
    pairs = zip(_REASONS, _preference(kept), _preference(other), strict=True)
    return next(name for name, one, two in pairs if one != two)


def _duplicate(
    kept: dict[str, Any], other: dict[str, Any], kind: Kind, difference: float | None = None, score: float | None = None
) -> Duplicate:
    return Duplicate(**other, kind=kind, why=_reason(kept, other), difference=difference, score=score)


def _pixels(picture: Picture) -> int:
    return (picture.facts["width"] or 0) * (picture.facts["height"] or 0)


def _link(one: Picture, other: Picture) -> None:
    one.neighbours.append(other)
    other.neighbours.append(one)


def _link_same_pixels(pictures: Iterable[Picture]) -> None:
    """Link pictures with equal pixels, because a picture may have more copies than `_NEIGHBOURS`."""
    firsts: dict[str, Picture] = {}
    for picture in pictures:
        if picture.signature and picture.signature.digest:
            _link(firsts.setdefault(picture.signature.digest, picture), picture)


def _components(pictures: Iterable[Picture]) -> Iterator[list[Picture]]:
    """The connected components of the graph of neighbours."""
    remaining = dict.fromkeys(pictures)
    while remaining:
        component = [next(iter(remaining))]
        del remaining[component[0]]
        for picture in component:
            for other in picture.neighbours:
                if other in remaining:
                    del remaining[other]
                    component.append(other)
        yield component


def _batches(components: Iterable[list[Picture]]) -> Iterator[list[Picture]]:
    """Join small components, so that their files are read in parallel."""
    batch: list[Picture] = []
    for component in components:
        batch += component
        if len(batch) >= _PICTURES:
            yield batch
            batch = []
    if batch:
        yield batch
