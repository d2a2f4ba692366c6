"""Compares pictures with the one that is kept: small copies of them, then the details of those that look alike."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from PIL import Image

from embedder.images.signature import Signature
from index.analysis.duplicate_kinds import Kind
from jobs.duplicates.detail import detail_difference
from jobs.duplicates.picture_loader import PictureLoader
from jobs.duplicates.same_picture import Comparison, compare, is_stretched

PIXEL_KINDS: Final = frozenset[Kind](("identical_pixels", "re_encoded", "cropped"))
"""The kinds that a Comparer finds."""
_DETAIL_KINDS: Final = PIXEL_KINDS - {"identical_pixels"}
_PICTURES: Final = 8  # in memory at a time


@dataclass(eq=False)
class Picture:
    """A file's content: the best row that has it, and the other rows with the same bytes."""

    facts: dict[str, Any]
    byte_copies: list[dict[str, Any]]
    signature: Signature | None = None
    neighbours: list["Picture"] = field(default_factory=list)


@dataclass(kw_only=True)
class Comparer:
    """Finds copies of `kept` that are of some `kinds`. Their pixels differ by at most `limit`, 0 … 1.

    `unread` counts, by reason, the pictures that could no longer be read.
    """

    kept: Picture
    kinds: Sequence[Kind]
    limit: float
    loader: PictureLoader
    unread: Counter[str]
    _whole: Image.Image | str | None = field(default=None, init=False)

    def copies(self, others: Iterable[Picture]) -> Iterator[tuple[Picture, Kind, float]]:
        """The copies among the pictures, how each was made, and how much its pixels differ."""
        alike = dict[Picture, list[Comparison]]()
        for other in others:
            one, two = self.kept.signature, other.signature
            if one is None or two is None or one.digest is None or two.digest is None:
                continue
            if one.digest == two.digest:
                if "identical_pixels" in self.kinds:
                    yield other, "identical_pixels", 0.0
                continue
            if found := compare(one.pixels.astype(np.float32), two.pixels.astype(np.float32), self.limit):
                alike[other] = found
        if not _DETAIL_KINDS.isdisjoint(self.kinds):
            for start in range(0, len(alike), _PICTURES):
                yield from self._alike_in_detail(list(alike.items())[start : start + _PICTURES])

    def _alike_in_detail(
        self, alike: Sequence[tuple[Picture, list[Comparison]]]
    ) -> Iterator[tuple[Picture, Kind, float]]:
        loaded = self._load([other for other, _ in alike])
        for (other, comparisons), picture in zip(alike, loaded, strict=True):
            if isinstance(picture, str) or not isinstance(self._whole, Image.Image):
                continue
            if is_stretched(picture.size, self._whole.size):
                continue
            for each in comparisons:
                pair = (picture, self._whole) if each.swapped else (self._whole, picture)
                difference, part = detail_difference(*pair, each.part, self.limit)
                if not part.is_cropped:
                    difference = max(difference, each.difference)
                kind: Kind = "cropped" if part.is_cropped else "re_encoded"
                if difference <= self.limit and part.is_within and kind in self.kinds:
                    yield other, kind, round(difference, 4)
                    break

    def _load(self, pictures: Sequence[Picture]) -> list[Image.Image | str]:
        """The pictures. That of `kept` is loaded with the first."""
        missing = [self.kept] if self._whole is None else []
        loaded = self.loader.pictures([each.facts for each in (*missing, *pictures)])
        self.unread.update(reason for reason in loaded if isinstance(reason, str))
        if missing:
            self._whole, *loaded = loaded
        return loaded
