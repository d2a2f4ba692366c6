"""Compares two index versions: which images differ, and whether images have the same neighbours."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from index.search import Searcher


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Ids, sorted, of images that only the later version has, only the earlier has, and both with other bytes."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    edited: tuple[str, ...]


def changes(before: Searcher, after: Searcher) -> Changes:
    """The changes between two versions of a collection, by content hash; rows without one count as unedited."""
    old, new = _hashes(before), _hashes(after)
    return Changes(
        added=tuple(sorted(new.keys() - old.keys())),
        removed=tuple(sorted(old.keys() - new.keys())),
        edited=tuple(sorted(name for name in new.keys() & old.keys() if new[name] != old[name])),
    )


def shared_neighbours(one: Searcher, other: Searcher, image_ids: Sequence[str], k: int = 10) -> npt.NDArray[np.float64]:
    """For each image, the share of its k nearest that both versions, maybe of two models, have in common, `(n,)`."""
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
