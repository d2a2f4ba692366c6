"""The facets of an answer."""

from collections.abc import Mapping
from typing import Final

from api.documents import FacetOut, FacetValueOut
from index.filters.facets import Counts, periods

_MAX_VALUES: Final = 100  # of a column


def facets_out(counts: Counts, types: Mapping[str, str]) -> dict[str, FacetOut]:
    """The most frequent values of each column, whose Arrow types are `types`."""
    columns: dict[str, FacetOut] = {}
    for name, counter in counts.values.items():
        values: list[FacetValueOut] = [{"value": value, "count": count} for value, count in counter.most_common()]
        if types[name].startswith(("timestamp", "date")):
            values = [{"value": value, "count": count, "filter": period} for value, count, period in periods(counter)]
        columns[name] = FacetOut(values=values[:_MAX_VALUES], others=max(0, len(values) - _MAX_VALUES))
    return columns
