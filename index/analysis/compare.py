"""Compares two index versions: their images, and the neighbours of images."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from index.search import Searcher


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Sorted ids of images that only the later version has, that only the earlier has, and whose bytes differ."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    edited: tuple[str, ...]


def changes(before: Searcher, after: Searcher) -> Changes:
    """The changes between two versions of a collection, by content hash; images without one count as unedited."""
    old, new = _hashes(before), _hashes(after)
    return Changes(
        added=tuple(sorted(new.keys() - old.keys())),
        removed=tuple(sorted(old.keys() - new.keys())),
        edited=tuple(sorted(name for name in new.keys() & old.keys() if new[name] != old[name])),
    )


def shared_neighbours(one: Searcher, other: Searcher, image_ids: Sequence[str], k: int = 10) -> npt.NDArray[np.float64]:
    """For each image, the share of its k nearest that two versions have in common, `(n,)`. Their models may differ."""
    shares = []
    for image_id in image_ids:
        mine, theirs = (
            {match.image_id for match in each.search(each.vector(image_id)[np.newaxis], k, exclude={image_id})[0]}
            for each in (one, other)
        )
        shares.append(len(mine & theirs) / max(len(mine), len(theirs), 1))
    return np.array(shares)


def _hashes(searcher: Searcher) -> dict[str, str | None]:
    rows = searcher.segments.rows(searcher.segments.live_positions(), ["image_id", "content_hash"])
    return {row["image_id"]: row["content_hash"] for row in rows}
