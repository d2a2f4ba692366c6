"""The facets of an answer."""

from collections.abc import Mapping
from heapq import nsmallest
from typing import Final

from api.documents import FacetOut, FacetValueOut
from index.filters.facets import Counts, periods

_MAX_VALUES: Final = 100  # of a column


def facets_out(counts: Counts, types: Mapping[str, str]) -> dict[str, FacetOut]:
    """The most frequent values of each column, whose Arrow types are `types`; equally frequent ones in their order."""
    columns: dict[str, FacetOut] = {}
    for name, counter in counts.values.items():
        best = nsmallest(_MAX_VALUES, counter.items(), key=lambda each: (-each[1], each[0]))
        values: list[FacetValueOut] = [{"value": value, "count": count} for value, count in best]
        known = len(counter)
        if types[name].startswith(("timestamp", "date")):
            spans = periods(counter)
            values = [{"value": at, "count": count, "filter": span} for at, count, span in spans[:_MAX_VALUES]]
            known = len(spans)
        columns[name] = FacetOut(values=values, others=known - len(values))
    return columns
