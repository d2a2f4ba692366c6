"""The route of facets: which values images share, to narrow a search down by."""

from typing import Final

from anyio import to_thread
from fastapi import APIRouter, Request
from fastapi.responses import Response

from api.documents import FacetOut, FacetsOut, FacetValueOut, IndexOut
from api.http.answering import Answering
from api.http.body import valid
from api.http.openapi import parameters_of
from api.http.problems import problem_docs
from api.http.requests import FacetParameters
from api.http.responses import check_filter, json_response
from api.search.service import facets_of
from index.filters.facets import Counts, periods
from index.search import Searcher

_MAX_VALUES: Final = 100  # of a column


def facet_routes(answering: Answering) -> APIRouter:
    """`GET /facets`."""
    router, limits = APIRouter(tags=["search"]), answering.limits

    @router.get(
        "/facets",
        summary="The values that recur among the images that pass a filter, with counts",
        response_model=FacetsOut,
        responses=problem_docs("invalid-request", "internal", "shard-unavailable"),
        openapi_extra={"parameters": parameters_of(FacetParameters, limits)},
    )
    async def facets(request: Request) -> Response:
        wanted = valid(dict(request.query_params), FacetParameters).filter
        searcher = (await answering.service(request)).engine.searcher
        check_filter(wanted, searcher.filterable, limits.show_locations)
        return json_response(_facets_out(searcher, await to_thread.run_sync(facets_of, searcher, wanted)))

    return router


def _facets_out(searcher: Searcher, counts: Counts) -> FacetsOut:
    index = IndexOut(version=searcher.version, ntotal=searcher.ntotal)
    columns: dict[str, FacetOut] = {}
    for name, counter in counts.values.items():
        values: list[FacetValueOut] = [{"value": value, "count": count} for value, count in counter.most_common()]
        if searcher.filterable[name].startswith(("timestamp", "date")):
            values = [{"value": value, "count": count, "filter": where} for value, count, where in periods(counter)]
        columns[name] = FacetOut(values=values[:_MAX_VALUES], others=max(0, len(values) - _MAX_VALUES))
    return FacetsOut(index=index, rows=counts.rows, columns=columns)
