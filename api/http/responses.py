"""Converts the library's objects to the documents of answers, with or without the locations of files."""

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, cast
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from api.documents import (
    ImageOut,
    IndexDetailsOut,
    IndexOut,
    MatchOut,
    ModelOut,
    PageOut,
    SearchedOut,
    SearchResponse,
    TimingOut,
    VersionOut,
    json_bytes,
)
from api.problems import invalid
from api.search.query import QueryOptions, SearchResult
from api.settings import RequestLimits
from embedder.identity import ModelIdentity
from index.collection.records.model_record import ModelRecord
from index.collection.records.version_manifest import VersionManifest
from index.collection.rows import FIXED_COLUMNS
from index.filters.filter import named_columns
from index.matches import Match
from index.search import VersionSearcher
from index.search_options import columns_by_option
from index.versions.promotion import Version

LOCATION_COLUMNS: Final = frozenset({"uri"})
"""Columns that reveal where a picture is stored."""

# From the root, or a scheme, to the last slash. Folder names may have spaces, but only in quotes is their end clear.
_ROOT: Final = r"(?:[A-Za-z][A-Za-z0-9+.-]*://|[A-Za-z]:[\\/]|~?/)"
_FOLDERS: Final = re.compile(rf"(?<=['\"]){_ROOT}(?:[^'\"\n]*[\\/])?|(?<![\w.~]){_ROOT}(?:[^\s'\"()]*[\\/])?")


def json_response(document: object) -> Response:
    """The document without FastAPI's validation against its type."""
    return Response(json_bytes(document), media_type="application/json")


def etag_response(request: Request, data: bytes, media_type: str, headers: Mapping[str, str]) -> Response:
    """The bytes with an ETag and these headers, or 304 if the caller has them already, according to If-None-Match."""
    etag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
    headers = {**headers, "ETag": etag}
    cached = request.headers.get("if-none-match", "").split(",")
    if any(tag.strip().removeprefix("W/") in (etag, "*") for tag in cached):
        return Response(status_code=304, headers=headers)
    return Response(data, media_type=media_type, headers=headers)


def search_response(result: SearchResult, show_locations: bool) -> SearchResponse:
    page = {name: getattr(result, name) for name in PageOut.__annotations__}
    others = {
        "matches": [match_out(match, show_locations) for match in result.matches],
        "index": index_out(result),
        "searched": SearchedOut(rows=result.searched, of=result.ntotal),
        "model": model_out(result.model, show_locations),
        "timing_ms": timing(result.timing_ms),
    }
    return cast(SearchResponse, page | others)


def index_out(index: SearchResult | VersionSearcher) -> IndexOut:
    return IndexOut(version=index.version, ntotal=index.ntotal)


def model_out(model: ModelIdentity | ModelRecord, show_locations: bool) -> ModelOut:
    return {
        "id": visible_model_id(model.id if isinstance(model, ModelRecord) else model.model_id, show_locations),
        "revision": model.revision,
        "fingerprint": model.fingerprint,
        "dim": model.dim,
    }


def timing(milliseconds: Mapping[str, float]) -> TimingOut:
    return cast(TimingOut, {stage: round(ms, 3) for stage, ms in milliseconds.items()})


def index_details(
    name: str, searcher: VersionSearcher, limits: RequestLimits, *, embeds_texts: bool
) -> IndexDetailsOut:
    show_locations = limits.show_locations
    hidden = frozenset() if show_locations else LOCATION_COLUMNS
    others = {
        "collection": name,
        "model": model_out(searcher.model, show_locations),
        "kind": searcher.manifest.kind,
        "columns": {name: kind for name, kind in searcher.filterable.items() if name not in hidden},
        "max_k": limits.max_k,
        "embeds_texts": embeds_texts,
        "has_words": not hidden.issuperset(searcher.word_columns),
    }
    return cast(IndexDetailsOut, _facts(searcher.manifest, IndexDetailsOut.__annotations__) | others)


def version_out(version: Version, serving: str, show_locations: bool, redacted: Callable[[str], str]) -> VersionOut:
    manifest = version.manifest
    facts = {
        "version": version.name,
        "live": version.live,
        "serving": version.name == serving,
        "model": model_out(manifest.model, show_locations) if manifest else None,
        "damage": version.damage and redacted(version.damage),
    }
    names = VersionOut.__annotations__
    return cast(VersionOut, dict.fromkeys(names) | (_facts(manifest, names) if manifest else {}) | facts)


def _facts(manifest: VersionManifest, names: Iterable[str]) -> dict[str, Any]:
    """Those of the names that are fields of the manifest, ready for JSON."""
    return manifest.model_dump(mode="json", include=set(names))


def image_out(row: Mapping[str, Any], show_locations: bool) -> ImageOut:
    hidden = frozenset() if show_locations else LOCATION_COLUMNS
    columns = {name: row.get(name) for name in ImageOut.__annotations__ if name in FIXED_COLUMNS and name not in hidden}
    metadata = {name: value for name, value in row.items() if name not in FIXED_COLUMNS}
    others = {"metadata": metadata, "picture": _picture_path(row["image_id"])}
    return cast(ImageOut, dict.fromkeys(ImageOut.__annotations__) | columns | others)


def match_out(match: Match, show_locations: bool) -> MatchOut:
    shown = vars(match) if show_locations else {**vars(match), "uri": None}
    return MatchOut(**shown, picture=_picture_path(match.image_id))


def _picture_path(image_id: str) -> str:
    """The address of an image's picture, relative to the server's root."""
    return f"/picture?id={quote(image_id)}"


def redact(text: str, *, show_locations: bool, known_locations: Sequence[str] = ()) -> str:
    """`text` with absolute paths and addresses cut to their last part: `/srv/x/clip` becomes `clip`.

    `known_locations` may contain spaces; others are taken to end at white space unless they are quoted.
    """
    if show_locations:
        return text
    for location in sorted(known_locations, key=len, reverse=True):  # one may be within another
        text = text.replace(location, visible_model_id(location, show_locations=False))
    return _FOLDERS.sub("", text)


def visible_model_id(model_id: str, show_locations: bool) -> str:
    """A model's id as callers see it. The id of a model in a folder is its path, cut to the last part here."""
    return re.split(r"[/\\]", model_id)[-1] if not show_locations and re.match(_ROOT, model_id) else model_id


def check_columns(options: QueryOptions, columns: Collection[str], show_locations: bool) -> None:
    """Raises Problem for options with columns that callers must not know about. The index checks the rest."""
    named = {"filter": named_columns(options.get("filter")), **columns_by_option(options)}
    for option, names in () if show_locations else named.items():
        for name in names:
            if name in LOCATION_COLUMNS or (name not in columns and name not in ("", "score")):
                raise invalid(option, "columns that `GET /index` names", name)
