"""Where the design stops, or takes longer than it should, as a collection grows."""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchmarks.scale.costs import Costs
from benchmarks.scale.examples import IDS_STEP, READ_AT_ONCE, Assumed, requests_for
from benchmarks.scale.index import FAST
from benchmarks.scale.text import amount


@dataclass(frozen=True, kw_only=True)
class Limit:
    """At how many images what stops or takes long, and what to do then."""

    what: str
    images: float
    why: str
    remedy: str


def limits(costs: Costs, assumed: Assumed) -> list[Limit]:
    """From the first that is met."""
    index, listing = costs.index_of(FAST), costs.listing
    disk_bytes = index.disk_bytes / index.rows
    lookup = costs.line(FAST, lambda each: each.lookup_ms)
    per_file = {step: assumed.waiting(requests_for(costs, step, "row file")) for step in ("commit", IDS_STEP)}
    found = [
        Limit(
            what=f"the driver's memory, comparing on {amount(assumed.memory_bytes)}",
            images=assumed.memory_bytes / listing.comparing_bytes,
            why=f"{listing.comparing_bytes:,.0f} bytes a row: listing and live rows are tables in its memory",
            remedy="a machine with more memory for the driver; several collections, a prefix each",
        ),
        Limit(
            what=f"the driver's memory, listing on {amount(assumed.memory_bytes)}",
            images=assumed.memory_bytes / listing.listing_bytes,
            why=f"{listing.listing_bytes:,.0f} bytes a file: rows are sorted, and ids that come twice looked for",
            remedy="a source for each prefix",
        ),
        *(
            Limit(
                what=f"{what}, `--block-size {block}`: an hour",
                images=3600 / per_file[step] * block,
                why=f"requests, {requests_for(costs, step, 'row file'):.0f} for each row file, {READ_AT_ONCE} at once, "
                f"at {assumed.request_s * 1e3:.0f} ms each, on a bucket",
                remedy=remedy,
            )
            for what, step, remedy in (
                ("commit of a run", "commit", "larger blocks; a run for each part of the source"),
                ("folding the runs", IDS_STEP, "larger blocks; several collections"),
            )
            for block in (256, 4096)
        ),
        Limit(
            what=f"the disk of whoever finishes a version, {amount(assumed.disk_bytes)}",
            images=assumed.disk_bytes / disk_bytes,
            why=f"{disk_bytes:,.0f} bytes a row: it copies every segment from the bucket to measure recall",
            remedy="a larger disk; several collections",
        ),
        Limit(
            what="finding an image by its id: a second",
            images=(1e3 - lookup.constant) / lookup.slope if lookup.slope else math.inf,
            why=f"ids are compared one by one, {index.lookup_ms:.1f} ms for {index.rows:,} of them",
            remedy="shards look at theirs at once; ask by vector where you can",
        ),
    ]
    return sorted(found, key=lambda limit: limit.images)
