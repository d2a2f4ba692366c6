"""What a Likeness server answers, in the library's own terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from api.documents import MatchOut, SearchResponse
from api.errors import ClientError, RequestRefused, TooBusy
from api.search.query import SearchResult
from embedder.identity import ModelIdentity
from index.match import Match

T = TypeVar("T")


def parse_answer(read: Callable[[Any], T], answer: dict[str, Any]) -> T:
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


def search_result(document: SearchResponse) -> SearchResult:
    model, index = document["model"], document["index"]
    return SearchResult(
        matches=[_match(match) for match in document["matches"]],
        version=index["version"],
        ntotal=index["ntotal"],
        searched=document["searched"]["rows"],
        model=ModelIdentity(
            model_id=model["id"], revision=model["revision"], fingerprint=model["fingerprint"], dim=model["dim"]
        ),
        timing_ms=document["timing_ms"],  # type: ignore[arg-type]  # a TypedDict of floats alone
    )


def _match(document: MatchOut) -> Match:
    return Match(
        image_id=document["image_id"],
        score=document["score"],
        uri=document["uri"] or "",
        metadata=document["metadata"],
        duplicates=tuple(document["duplicates"]),
        percentile=document["percentile"],
    )
