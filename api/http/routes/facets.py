"""The route of facets: values that images share, to narrow a search down."""

from typing import Final

from anyio import to_thread
from fastapi import APIRouter, Request
from fastapi.responses import Response

from api.documents import FacetOut, FacetsOut, FacetValueOut, IndexOut
from api.http.body import validate
from api.http.openapi import parameters_of
from api.http.problems import problem_docs
from api.http.query_runner import QueryRunner
from api.http.requests import FacetParameters
from api.http.responses import check_filter, json_response
from api.search.service import facets_of
from index.filters.facets import Counts, periods
from index.search import Searcher

_MAX_VALUES: Final = 100  # per column


def facet_routes(runner: QueryRunner) -> APIRouter:
    """`GET /facets`."""
    router, limits = APIRouter(tags=["search"]), runner.limits

    @router.get(
        "/facets",
        summary="The values that recur among the images that pass a filter, with counts",
        response_model=FacetsOut,
        responses=problem_docs("invalid-request", "internal", "shard-unavailable"),
        openapi_extra={"parameters": parameters_of(FacetParameters, limits)},
    )
    async def facets(request: Request) -> Response:
        where = validate(dict(request.query_params), FacetParameters).filter
        searcher = (await runner.service(request)).engine.searcher
        check_filter(where, searcher.filterable, limits.show_locations)
        return json_response(_facets_out(searcher, await to_thread.run_sync(facets_of, searcher, where)))

    return router


def _facets_out(searcher: Searcher, counts: Counts) -> FacetsOut:
    index = IndexOut(version=searcher.version, ntotal=searcher.ntotal)
    columns: dict[str, FacetOut] = {}
    for name, counter in counts.values.items():
        values: list[FacetValueOut] = [{"value": value, "count": count} for value, count in counter.most_common()]
        if searcher.filterable[name].startswith(("timestamp", "date")):
            values = [{"value": value, "count": count, "filter": period} for value, count, period in periods(counter)]
        columns[name] = FacetOut(values=values[:_MAX_VALUES], others=max(0, len(values) - _MAX_VALUES))
    return FacetsOut(index=index, rows=counts.rows, columns=columns)
