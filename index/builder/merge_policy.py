"""Which segments to merge, so that a query costs little more than after a build from all rows, and each row is
rewritten only now and then.
"""

from collections.abc import Sequence
from typing import NamedTuple

from index.collection.merged.policy import choose

_MAX_DEAD = 1 / 3  # share of a segment's rows under tombstones
TAIL_SHARE = 25
"""Newer rows are a segment of their own, rewritten by each update, until they are this part of a larger one's, which
is written again only then."""


class Size(NamedTuple):
    """All rows of a segment, how many of them are live, and how many its approximate index was trained for; 0: none."""

    ntotal: int
    live: int
    trained: int = 0

    @property
    def worn(self) -> bool:
        return self.ntotal - self.live > _MAX_DEAD * self.ntotal


class Merge(NamedTuple):
    """The segments of these numbers become one, and the new rows join them if `with_new`. The approximate index is that
    of the segment `host`, filled further if it is one of them; None: a new one is trained.
    """

    numbers: list[int]
    with_new: bool
    host: int | None = None


def choose_growth(sizes: Sequence[Size], new: int, limit: int) -> Merge:
    """How segments with approximate indexes grow. A search in one costs nearly the same whatever its size, so their
    number counts: beside large ones there is one tail of newer rows, which joins the largest with room for it.

    A tail has the large one's quantizer, so that a night of few new rows trains nothing. A new one is trained when the
    rows have doubled since the last.
    """
    hosts = sorted((number for number in range(len(sizes)) if sizes[number].trained), key=lambda n: -sizes[n].live)
    for host in hosts:
        large = sizes[host]
        tail = _tail(sizes, large.live, host)
        added = new + sum(sizes[number].live for number in tail)
        if large.ntotal + max(added, large.live // TAIL_SHARE) <= limit:
            break
    else:
        # All are full, or none is approximate yet.
        tail = _tail(sizes, limit, None) if hosts else [*range(len(sizes))]
        return _fitting(sizes, tail, new, limit, hosts[0] if hosts else None)
    if added * TAIL_SHARE <= large.live and not large.worn:
        return _fitting(sizes, tail, new, limit, host)
    return Merge(sorted([*tail, host]), bool(new), host if large.live + added <= 2 * large.trained else None)


def _tail(sizes: Sequence[Size], live: int, host: int | None) -> list[int]:
    """The segments that are small beside one of `live` rows, have many tombstones, or no index; not the host."""
    small = (size.live * TAIL_SHARE <= live or size.worn or not size.trained for size in sizes)
    return [number for number, is_small in enumerate(small) if is_small and number != host]


def _fitting(sizes: Sequence[Size], numbers: Sequence[int], new: int, limit: int, host: int | None) -> Merge:
    """Merges the smallest of these segments, as many as fit, and the new rows if they do. One that has the quantizers
    of `host` is filled further, so that only the rows of the others are encoded.
    """
    fitting = new if new <= limit else 0
    chosen: list[int] = []
    for number in sorted(numbers, key=lambda number: sizes[number].live):
        if fitting + sizes[number].live > limit:
            break
        fitting += sizes[number].live
        chosen.append(number)
    if not new and len(chosen) == 1 and not sizes[chosen[0]].worn:
        chosen = []  # it would be written again unchanged
    for number in chosen:  # the largest last
        size, dead = sizes[number], sizes[number].ntotal - sizes[number].live
        if host is not None and size.trained == sizes[host].trained and not size.worn and fitting + dead <= limit:
            host = number
    return Merge(sorted(chosen), 0 < new <= limit, host)


def choose_merge(sizes: Sequence[Size], new: int, limit: int) -> Merge:
    """Which segments to merge while all are scanned exactly, so that only rows cost: as many of one size as runs of
    one, see `choose`. A segment with many tombstones is rewritten; one with more than `limit / 2` live rows is never
    merged for its size.
    """
    # The new rows count as one more segment, and join the merge if they fit.
    live = [*(size.live for size in sizes), *([new] if new else [])]
    chosen = choose(live, limit, always=[number for number, size in enumerate(sizes) if size.worn])
    merged = [number for number in chosen if number < len(sizes)]
    rows = new + sum(sizes[number].live for number in merged)
    return Merge(merged, bool(new and chosen and rows <= limit))
