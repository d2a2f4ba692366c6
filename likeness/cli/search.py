"""The command `search`. `app` registers it."""

import json
import math
import re
import shlex
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from embedder.errors import FetchError
from jobs.errors import UsageError
from jobs.values import parse_object
from likeness.cli.model_options import Fields, flag_of, model_of, with_fields
from likeness.cli.options import (
    MODEL,
    CollectionArgument,
    FormatOption,
    console,
    open_collection,
    parse_option,
    serve_settings,
    show,
)

if TYPE_CHECKING:
    from api.search.query import Part, Query, SearchResult
    from index.search import VersionSearcher

UNLIKE_WEIGHT: Final = 0.3
"""Default weight of an image to be unlike, if one to be like weighs 1. Searching for one drawn picture and against one
of another shape, 94% of first matches have the right shape; 95% without the latter, and 67% if it weighs 1.
"""
FITTING_PERCENTILE: Final = 99.995
"""Default minimum percentile of a match that fits its words. In the demo collection 99% of 200 captions find what they
describe, and 97% of 200 for a shape, a colour or a subject that no image has find nothing.
"""

_FILTER = '{"label": "cat", "width": {"$gte": 640}}'
_QUERY: Final = ("api.search.query", "QueryOptions")
_FLAGS: Final = {"k": "-k"}


@with_fields(
    Fields(*_QUERY, "k", flags=_FLAGS),
    Fields(*_QUERY, but="k allow_partial"),
    *MODEL,
)
def search(
    collection: CollectionArgument,
    query: Annotated[str | None, typer.Argument(help="A picture: path or URL. For words, use --text.")] = None,
    text: Annotated[str | None, typer.Option(help="Words instead of a picture.")] = None,
    like: Annotated[
        list[str] | None,
        typer.Option(metavar="ID[:WEIGHT]", help="The id of an image in the collection; may be repeated."),
    ] = None,
    unlike: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID[:WEIGHT]", help=f"With --like: an image to stay away from; weighs {UNLIKE_WEIGHT} by default."
        ),
    ] = None,
    crop: Annotated[
        str | None,
        typer.Option(metavar="X,Y,W,H", help="Use only this part of the picture, as fractions: 0.1,0.2,0.5,0.5."),
    ] = None,
    fitting: Annotated[
        bool,
        typer.Option(
            "--fitting", help=f"With --text: only what fits the words, like --min-percentile {FITTING_PERCENTILE}."
        ),
    ] = False,
    output: FormatOption = "table",
    **options: Any,
) -> None:
    """Find the images most like a picture or words; with neither, list those that pass a filter. This needs no server.

    Examples: `likeness search my-collection cat.jpg`, `likeness search my-collection --text "a red star"`,
    `likeness search my-collection --like cat.jpg --filter '{"width": {"$gte": 640}}' --min-score 0.8`,
    `likeness search my-collection --sort=-width --group-by label --facets format`
    """
    from api.documents import json_bytes
    from api.search.query import Query, QueryOptions
    from index.errors import OptionError
    from likeness.cli.tables.matches import ResultTables

    if fitting and (text is None or options["min_percentile"] is not None):
        raise UsageError("--fitting goes with --text, in place of --min-percentile")
    if fitting:
        options["min_percentile"] = FITTING_PERCENTILE
    if options["filter"] is not None:
        options["filter"] = parse_option("--filter", options["filter"], lambda text: parse_object(text, _FILTER))
    if options["distinct"] is not None:
        options["distinct"] = parse_option("--distinct", options["distinct"], _parse_distinct)
    try:
        search = Query(parts=(), options=model_of(QueryOptions, options, _FLAGS))
    except OptionError as error:
        raise UsageError(f"{flag_of(error.name, _FLAGS)} is {error.got}: expected {error.expected}") from error
    search = replace(search, parts=_query_parts(collection, query, text, like or [], unlike or [], crop))
    result = _search(collection, options["model"], options["embedder"], search)
    show(output, json.loads(json_bytes(vars(result))), lambda: ResultTables(result))


def _fetch_picture(query: str) -> bytes:
    """The bytes of a picture. It may be a local file or on a private host, as the user's own command line names it."""
    from embedder.fetch import Fetcher
    from index.storage.picture_reader import PictureReader

    try:
        return Fetcher(buckets=PictureReader()).fetch(query)
    except FetchError as error:
        if error.reason == "not_a_file":
            remedy = "Name a picture; `likeness embed` adds the pictures of a folder to a collection"
            raise FetchError(error.reason, f"{error}. {remedy}") from error
        if "://" in query or error.reason not in ("not_found", "bad_uri"):
            raise
        quoted = shlex.quote(query)
        others = f" (to search by words, use --text {quoted}; by an image of the collection, --like {quoted})"
        raise FetchError(error.reason, f"{error}{others if query.strip() else ''}") from error


def _with_weight(part: "Part", searcher: "VersionSearcher") -> "Part":
    """The part, with the weight after the last colon of its id unless the index has an image of the whole id."""
    image_id, _, number = (part.image_id or "").rpartition(":")
    is_weight = re.fullmatch(r"\d+(\.\d+)?|\.\d+", number, re.ASCII) is not None
    if is_weight and not searcher.row(part.image_id or "") and searcher.row(image_id):
        return replace(part, image_id=image_id, weight=math.copysign(float(number), part.weight))
    return part


def _query_parts(
    collection: str, query: str | None, text: str | None, like: list[str], unlike: list[str], crop: str | None
) -> "tuple[Part, ...]":
    """The parts of the query that the options describe. Raises UsageError."""
    from api.search.query import Part

    if unlike and not like:
        raise UsageError("--unlike goes with --like: also name an image that matches should be like")
    if [query is not None, text is not None, bool(like)].count(True) > 1:
        raise UsageError("expected one of a picture, --text and --like")
    fractions = None if crop is None else parse_option("--crop", crop, _parse_crop)
    if fractions is not None and (query is None and len(like) != 1):
        raise UsageError("--crop goes with one picture: name it, or one image by --like")
    if query is None and text is None and not like:
        return ()
    if not like:
        open_collection(collection)  # before the picture and the model, which may take seconds
        return (Part(data=None if query is None else _fetch_picture(query), text=text, crop=fractions),)
    return (
        *(Part(image_id=image_id, crop=fractions) for image_id in like),
        *(Part(image_id=image_id, weight=-UNLIKE_WEIGHT) for image_id in unlike),
    )


def _parse_distinct(text: str) -> float | None:
    from index.search_options import duplicate_cosine

    try:
        value = {"true": True, "false": False}.get(text.lower())
        return duplicate_cosine(float(text) if value is None else value)
    except ValueError as error:
        raise ValueError(f"is {text!r}: expected a cosine from -1 to 1, true or false") from error


def _parse_crop(text: str) -> tuple[float, ...]:
    try:
        return tuple(map(float, text.split(",")))
    except ValueError as error:
        raise ValueError(f"is {text!r}: expected four numbers with commas, such as 0.1,0.2,0.5,0.5") from error


def _search(collection: str, model: str | None, embedder: str | None, query: "Query") -> "SearchResult":
    """The result of a query as a server would find it. The model is loaded if the query needs it."""
    from api.build_service import build_service
    from api.search.engine import UnknownModel

    with console.status("loading the index and the model" if query.needs_model else "loading the index"):
        settings = serve_settings(collection=collection, model=model, embedder=embedder and (embedder,))
        service = build_service(settings, load_model=None if query.needs_model else UnknownModel)
    with closing(service):
        parts = tuple(_with_weight(part, service.engine.searcher) for part in query.parts)
        return service.search(replace(query, parts=parts))
