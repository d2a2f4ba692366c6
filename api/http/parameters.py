"""The parameters of all routes: the API version, and in the URL only those that the documentation names, each once."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote_to_bytes

from fastapi import Header, Request

from api.http.middleware.admission import PROBE_PATHS
from api.http.middleware.every_request import API_VERSION, VERSION
from api.http.problem_responses import MAX_ERRORS
from api.problems import abbreviate, invalid, invalid_fields

T = TypeVar("T")

# The middleware refuses others.
_Version = Annotated[
    str,
    Header(
        alias=API_VERSION,
        description="the API version that the client was written for",
        json_schema_extra={"enum": [VERSION]},
    ),
]


async def check_parameters(request: Request, _: _Version = VERSION) -> None:
    """A dependency of routes. Raises Problem for unknown and for repeated parameters, which would have no effect, and
    for those that are not UTF-8, which would be read as other ones.
    """
    route = request.scope["route"]
    # The script of a page reads its parameters; a probe must not fail for one.
    if not route.include_in_schema or route.path in PROBE_PATHS:
        return
    known = {each.alias for each in route.dependant.query_params}
    known |= {each["name"] for each in (route.openapi_extra or {}).get("parameters", ())}
    if (count := len(request.query_params.multi_items())) > MAX_ERRORS:
        raise invalid("URL", f"at most {MAX_ERRORS} parameters", count)
    _check_encoding(request.scope["query_string"])
    given = single(request.query_params.multi_items())
    expected = f"only {', '.join(sorted(known))}" if known else "no parameters in the URL"
    if unknown := [name for name in given if name not in known]:
        raise invalid_fields([{"field": name, "expected": expected, "got": "an unknown field"} for name in unknown])


def _check_encoding(query: bytes) -> None:
    errors = []
    for pair in query.split(b"&"):
        try:
            unquote_to_bytes(pair.decode("ascii")).decode()
        except UnicodeDecodeError:
            name, _, value = pair.decode("latin-1").partition("=")
            errors.append({"field": name, "expected": "UTF-8, percent-encoded", "got": abbreviate(value)})
    if errors:
        raise invalid_fields(errors)


def single(items: Iterable[tuple[str, T]]) -> dict[str, T]:
    """The fields of a URL or a form. Raises Problem for repeated ones."""
    items = list(items)
    repeated = [(name, count) for name, count in Counter(name for name, _ in items).items() if count > 1]
    if repeated:
        errors = [{"field": name, "expected": "one value", "got": f"{count:,} values"} for name, count in repeated]
        raise invalid_fields(errors)
    return dict(items)


def merged(body: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a body, with options from the URL. Raises Problem for those that are in both."""
    if both := sorted(body.keys() & options.keys()):
        expected = "a value in the URL or in the body"
        raise invalid_fields([{"field": name, "expected": expected, "got": "both"} for name in both])
    return {**body, **options}
