"""What a Likeness server answers, in the library's own terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypedDict, TypeVar

from api.errors import ClientError, RequestRefused, TooBusy
from api.search.result import SearchResult
from embedder.identity import ModelIdentity
from index.match import Match

T = TypeVar("T")


class ModelDocument(TypedDict):
    """See ModelIdentity."""

    id: str
    revision: str | None
    fingerprint: str
    dim: int


class IndexDocument(TypedDict):
    """The index version in use, with the measurements of its build.

    `recall` is by k, `latency_ms` of one query by percentile; `columns` are those that a filter can name, with their
    Arrow types. Times are ISO 8601.
    """

    version: str
    ntotal: int
    model: ModelDocument
    kind: str
    created_at: str
    recall: dict[str, float]
    latency_ms: dict[str, float]
    queries_per_second: float
    columns: dict[str, str]


class VersionDocument(TypedDict):
    """An index version: `live` if CURRENT names it, `serving` if this server answers from it.

    If its manifest cannot be read, `damage` says why, and the fields from the manifest are None.
    """

    version: str
    live: bool
    serving: bool
    ntotal: int | None
    model: ModelDocument | None
    recall: dict[str, float] | None
    created_at: str | None
    damage: str | None


class SwitchDocument(TypedDict):
    """The version that CURRENT names now, and the one that this server answers from: the same unless `failure` is set.

    `before` is the version that it answered from before; `skipped` are versions that a rollback passed over, and why.
    """

    live: str
    before: str
    serving: str
    failure: str | None
    skipped: dict[str, str]


def parse_answer(read: Callable[[dict[str, Any]], T], answer: dict[str, Any]) -> T:
    """`read(answer)`. ClientError when the answer is not of the expected form."""
    try:
        return read(answer)
    except (KeyError, TypeError, ValueError) as error:
        raise ClientError(f"the answer is not as expected ({error!r}): is the server of another version?") from error


def outcome(document: Mapping[str, Any], read: Callable[[Any], T]) -> T | RequestRefused:
    """One of several results: `read` of its document, or the error in place of it."""
    problem = document.get("problem")
    return read(document["ok"]) if problem is None else refusal(problem)


def refusal(problem: Mapping[str, Any], retry_after: float | None = None) -> RequestRefused:
    """The error of a problem document; `retry_after` in seconds, if the answer has that header."""
    if retry_after is None:
        retry_after = problem.get("retry_after_s")
    return (TooBusy if problem.get("status") == 429 else RequestRefused)(problem, retry_after)


def search_result(document: Mapping[str, Any]) -> SearchResult:
    """The answer to one search."""
    model, index = document["model"], document["index"]
    return SearchResult(
        matches=[_match(match) for match in document["matches"]],
        version=index["version"],
        ntotal=index["ntotal"],
        searched=document["searched"]["rows"],
        model=ModelIdentity(
            model_id=model["id"], revision=model["revision"], fingerprint=model["fingerprint"], dim=model["dim"]
        ),
        timing_ms=document["timing_ms"],
    )


def _match(document: Mapping[str, Any]) -> Match:
    return Match(
        image_id=document["image_id"],
        score=document["score"],
        uri=document["uri"] or "",
        metadata=document["metadata"],
        duplicates=tuple(document["duplicates"]),
        percentile=document["percentile"],
    )
