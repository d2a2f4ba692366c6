"""From the library's objects to the documents that are answered."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast
from urllib.parse import quote

from pydantic_core import to_json, to_jsonable_python
from starlette.responses import Response

from api.access.locations import LOCATION_COLUMNS, redact, shown_model_id
from api.documents import (
    ImageOut,
    IndexDetailsOut,
    IndexOut,
    MatchOut,
    ModelOut,
    SearchedOut,
    SearchResponse,
    TimingOut,
    VersionOut,
)
from api.search.query import SearchResult, plain
from embedder.identity import ModelIdentity
from index.collection.records import ModelRecord, VersionManifest
from index.collection.rows import FIXED
from index.match import Match
from index.versions.promotion import Version


def json_response(document: object) -> Response:
    """The document without FastAPI's validation against its type."""
    return Response(json_bytes(document), media_type="application/json")


def json_bytes(document: object) -> bytes:
    return to_json(document, inf_nan_mode="null")


def search_response(result: SearchResult, locations: bool) -> SearchResponse:
    return {
        "matches": [_match(match, locations) for match in result.matches],
        "index": IndexOut(version=result.version, ntotal=result.ntotal),
        "searched": SearchedOut(rows=result.searched, of=result.ntotal),
        "model": model_out(result.model, locations),
        "timing_ms": timing(result.timing_ms),
    }


def model_out(model: ModelIdentity | ModelRecord, locations: bool) -> ModelOut:
    return {
        "id": shown_model_id(model.id if isinstance(model, ModelRecord) else model.model_id, locations),
        "revision": model.revision,
        "fingerprint": model.fingerprint,
        "dim": model.dim,
    }


def timing(milliseconds: Mapping[str, float]) -> TimingOut:
    return cast(TimingOut, {stage: round(ms, 3) for stage, ms in milliseconds.items()})


def index_details(manifest: VersionManifest, columns: dict[str, str], locations: bool) -> IndexDetailsOut:
    return {
        "version": manifest.version,
        "ntotal": manifest.ntotal,
        "model": model_out(manifest.model, locations),
        "kind": manifest.kind,
        "created_at": _time(manifest.created_at),
        "recall": manifest.recall,
        "latency_ms": manifest.latency_ms,
        "queries_per_second": manifest.queries_per_second,
        "columns": {name: kind for name, kind in columns.items() if locations or name not in LOCATION_COLUMNS},
    }


def version_out(version: Version, serving: str, locations: bool) -> VersionOut:
    manifest = version.manifest
    return {
        "version": version.name,
        "live": version.live,
        "serving": version.name == serving,
        "ntotal": manifest.ntotal if manifest else None,
        "model": model_out(manifest.model, locations) if manifest else None,
        "recall": manifest.recall if manifest else None,
        "created_at": _time(manifest.created_at) if manifest else None,
        "damage": version.damage and redact(version.damage, show=locations),
    }


def image_out(row: Mapping[str, Any], locations: bool) -> ImageOut:
    hidden = frozenset() if locations else LOCATION_COLUMNS
    known = {name: row.get(name) for name in ImageOut.__annotations__ if name in FIXED and name not in hidden}
    return cast(
        ImageOut,
        dict.fromkeys(ImageOut.__annotations__)
        | known
        | {
            "metadata": {name: plain(value) for name, value in row.items() if name not in FIXED},
            "picture": _picture_path(row["image_id"]),
        },
    )


def _match(match: Match, locations: bool) -> MatchOut:
    return {
        "image_id": match.image_id,
        "score": match.score,
        "uri": match.uri if locations else None,
        "metadata": {name: plain(value) for name, value in match.metadata.items()},
        "picture": _picture_path(match.image_id),
        "duplicates": list(match.duplicates),
        "percentile": match.percentile,
    }


def _picture_path(image_id: str) -> str:
    """The address of an image's picture, relative to the server's root."""
    return f"/picture?id={quote(image_id)}"


def _time(moment: datetime) -> str:
    return str(to_jsonable_python(moment))
