"""Finds duplicates of each kind: by content hash, by pixels among pairs that vectors propose, and by vectors alone."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import numpy as np

from index.analysis.duplicate_kinds import KINDS, Kind
from index.analysis.duplicate_plan import Duplicate, DuplicatePlan, PlannedGroup, PlannedImage, sort_groups
from index.analysis.near_duplicates import LinkedRows, near_duplicates, nearest_pairs
from index.builder.build_index import require_all_runs
from index.collection import Collection
from index.collection.catalog.catalog import Catalog, RunRows
from index.collection.records.version_manifest import VersionManifest
from index.collection.rows import text_array
from index.search import Searcher
from index.search.searcher import searched_version
from index.segments.segmented_index import SegmentedIndex
from index.versions.servable import open_last_good
from jobs.duplicates.comparer import PIXEL_KINDS, Comparer, Picture
from jobs.duplicates.local_files import Row, local_file, one_path_each
from jobs.duplicates.picture_loader import PictureLoader
from jobs.duplicates.preference import preference, reason
from jobs.values import MAX_DIFFERENCE, MIN_SIMILARITY

_COLUMNS: Final = ("image_id", "uri", "content_hash", "width", "height", "format", "size", "modified")
_NEIGHBOURS: Final = 16  # of each picture, whose pixels are compared with it
_MIN_SCORE: Final = 0.9  # minimum cosine of such a neighbour
_IMAGES: Final = "FROM live_rows WHERE error_reason IS NULL AND content_hash <> ''"
_SAME_BYTES: Final = f"SELECT {', '.join(_COLUMNS)}, seq FROM ({_IMAGES}) SEMI JOIN repeated USING (content_hash)"
_PICTURES: Final = 512  # files read at a time

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Finder:
    """Makes the plan of an index version.

    Pixels of copies differ by at most `max_difference`; similar pictures have a cosine of at least `min_score`.
    `progress` gets what is counted, how many are done, and the total. Files that were `moved` are left out.
    """

    collection: Collection
    loader: PictureLoader
    kinds: Sequence[Kind] = KINDS
    min_score: float = MIN_SIMILARITY
    max_difference: float = MAX_DIFFERENCE
    progress: Progress = lambda *_: None
    moved: Set[Path] = frozenset()
    unread: Counter[str] = field(default_factory=Counter, init=False)
    _second_paths: set[str] = field(default_factory=set, init=False)

    def plan(self, scratch: Path) -> DuplicatePlan:
        """The groups, largest first, in a file in `scratch`. Each copy was compared with the picture to keep."""
        found, counts = sort_groups(self._found(), scratch, self._catalog)
        return DuplicatePlan(
            version=self._manifest.version,
            created_at=datetime.now(UTC),
            looked_for=tuple(kind for kind in KINDS if kind in self.kinds),
            min_score=self.min_score,
            max_difference=self.max_difference,
            groups=len(found),
            duplicates=counts,
            unread=dict(self.unread),
            second_paths=len(self._second_paths),
            found=found,
        )

    def _found(self) -> Iterator[PlannedGroup]:
        copies = set[str]()
        for group in self._copies():
            if "similar" in self.kinds:
                copies.update(duplicate.image_id for duplicate in group.duplicates)
            yield group
        if "similar" in self.kinds:
            yield from self._similar(copies | self._moved_ids | self._second_paths)

    @cached_property
    def _searcher(self) -> Searcher:
        return open_last_good(self.collection, Searcher.open)

    @property
    def _segments(self) -> SegmentedIndex:
        return self._searcher.segments

    @cached_property
    def _manifest(self) -> VersionManifest:
        """That of the searched version; files are compared without its vectors."""
        bytes_only = set(self.kinds) <= {"identical_bytes"}
        return open_last_good(self.collection, searched_version) if bytes_only else self._searcher.manifest

    @cached_property
    def _catalog(self) -> Catalog:
        """The rows that the version was built from."""
        runs = [run for run in self.collection.runs() if run.run_id in self._manifest.runs]
        require_all_runs(self.collection, self._manifest, runs)
        storage = self.collection.storage
        return Catalog(storage, [RunRows.of(storage, run) for run in runs])

    @cached_property
    def _moved_ids(self) -> set[str]:
        rows = self._catalog.rows("SELECT image_id, uri FROM live_rows") if self.moved else ()
        return {row["image_id"] for row in rows if local_file(row["uri"]) in self.moved}

    def _same_bytes(self) -> Iterator[list[Row]]:
        """The rows of each content that several images have, without those that were moved."""
        self._catalog.group("repeated", "content_hash", _IMAGES, "content_hash", having="count(*) > 1")
        # Stored, because joining and sorting tens of millions of rows in one query takes more memory than DuckDB has.
        copies = self._catalog.store(_SAME_BYTES).sql
        found = self._catalog.rows(f"SELECT * EXCLUDE (seq) FROM {copies} ORDER BY content_hash, seq")
        rows = (row for row in found if row["image_id"] not in self._moved_ids)
        groups = (list(group) for _, group in groupby(rows, itemgetter("content_hash")))
        return (group for group in groups if len(group) > 1)

    def _copies(self) -> Iterator[PlannedGroup]:
        if PIXEL_KINDS.isdisjoint(self.kinds):
            for rows in self._same_bytes():
                yield from self._groups([self._picture(rows)])
            return
        components = self._components()
        total, done = sum(map(len, components)), 0
        for batch in _batches(components):
            self._read_signatures([picture for picture in batch if picture.neighbours])
            yield from self._groups(batch)
            for picture in batch:
                picture.signature = None  # frees 12 KiB
            done += len(batch)
            self.progress("pictures compared", done, total)

    def _components(self) -> list[list[Picture]]:
        """A picture for each content that several images have, or whose vectors are near those of others, beside these
        others, theirs, and so on.
        """
        groups = list(self._same_bytes())
        positions = self._segments.positions(text_array(row["image_id"] for rows in groups for row in rows))
        ends = np.cumsum(list(map(len, groups)))
        found = {int(each.min()): rows for each, rows in zip(np.split(positions, ends), groups, strict=False)}
        others = np.concatenate([positions, self._segments.positions(text_array(self._moved_ids))])
        firsts = np.union1d(np.setdiff1d(self._segments.live_positions(), others), list(found)).astype(np.int64)
        pairs, linked = list(nearest_pairs(self._segments, firsts, _MIN_SCORE, _NEIGHBOURS)), LinkedRows(self._segments)
        for pair in pairs:
            linked.add(*pair)
        components = linked.groups()
        near = [position for group in components for position in group.tolist() if position not in found]
        rows = self._segments.rows(np.array(near, np.int64), _COLUMNS)
        found |= {position: [row] for position, row in zip(near, rows, strict=True)}
        pictures = {position: self._picture(found[position]) for position in sorted(found)}
        for one, other in (each for part in pairs for each in zip(part[0].tolist(), part[1].tolist(), strict=True)):
            _link(pictures[one], pictures[other])
        alone = [[picture] for picture in pictures.values() if not picture.neighbours]
        return [*([pictures[position] for position in group.tolist()] for group in components), *alone]

    def _picture(self, rows: Sequence[Row]) -> Picture:
        facts, second_paths = one_path_each(rows) if len(rows) > 1 else (rows, [])
        self._second_paths.update(row["image_id"] for row in second_paths)
        best, *others = sorted(facts, key=preference)
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
        remaining = dict.fromkeys(sorted(pictures, key=lambda picture: preference(picture.facts)))
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
            ordered = sorted([*remaining, *nearer], key=lambda picture: preference(picture.facts))
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
        for group in near_duplicates(self._searcher, self.min_score, progress=progress):
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
