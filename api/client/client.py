"""The Python client of a Likeness server. Imports neither FastAPI nor torch, faiss or Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, Never, Self, TypeVar, Unpack, cast
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter

from api.client.query import (
    UNUSABLE,
    Body,
    ImageLike,
    Search,
    check_known,
    checked_id,
    image_base64,
    items_of,
    search_body,
    search_json,
    to_json,
    with_options,
)
from api.client.transport import Transport, refusal
from api.documents import MAX_BATCH, MAX_JSON_VALUES, IndexDetailsOut, PageOut, SwitchedOut, VersionOut
from api.errors import ClientError, ProblemAnswered, RequestRefused
from api.search.query import CollectionsResult, QueryOptions, SearchResult
from embedder.identity import ModelIdentity
from index.matches import Match

T = TypeVar("T")

_BATCH_BYTES: Final = 16 * 2**20  # of a request: half of the server's default maximum


class LikenessClient:
    """Sends queries to a Likeness server and returns the library's own objects. Thread-safe.

        with LikenessClient("http://127.0.0.1:8000") as client:
            for match in client.search(image="star.jpg", k=5):
                print(match.score, match.image_id)

    `timeout` is in seconds, for a whole call, or each request of 64 items. Every method raises RequestRefused, with the
    server's problem document, and ServerUnreachable, after `retries` retries: try again later (ServerUnavailable if a
    problem document says so). All calls except `promote` and `rollback` are retried if that may help.
    """

    def __init__(self, base_url: str, *, api_key: str | None = None, timeout: float = 60, retries: int = 3) -> None:
        self._http = Transport(base_url, api_key=api_key, timeout=timeout, retries=retries)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._http.base_url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Further calls open new ones."""
        self._http.close()

    def search(self, *unnamed: Never, **search: Unpack[Search]) -> SearchResult:
        """The images nearest to one of `url`, `image`, `text`, `id`, `embedding`, or to a mix of `queries`; without any
        of these, the images that pass the `filter`.

        `queries` are Examples: `[{"image": path}, {"text": "at night", "weight": -0.5}]`. For options, such as
        `k`, `offset` and `filter`, see `QueryOptions`. The `uri` of a match is None if the server hides locations.
        """
        if unnamed:
            raise TypeError(f'expected what to search for by its name, as in text="a red star", got {unnamed[0]!r:.80}')
        answer = self._http.json("POST", "/search", body=search_body(search))
        return _read_answer(_search_result, answer)

    def search_collections(self, collections: Sequence[str], **search: Unpack[Search]) -> CollectionsResult:
        """Like `search`, in these collections of the server as if one had all their images; without `id`. If their
        models differ, matches are merged by rank.
        """
        body = Body.json(search_json(search, collections=collections))
        return _read_answer(_collections_result, self._http.json("POST", "/search/collections", body=body))

    def search_batch(
        self, searches: Iterable[Search], **options: Unpack[QueryOptions]
    ) -> list[SearchResult | Exception]:
        """The result of each search, in order, or the error that it has: RequestRefused, ServerUnavailable, or what
        `search` raises before it sends anything. Takes any number of searches and sends 64 at a time.

        `options` apply to those that do not set them.
        """
        check_known(options, QueryOptions.__annotations__)
        items = items_of(searches, "search", "a list of searches; use search(…) for one")
        unsent: dict[int, Exception] = {}

        def sent() -> Iterator[str]:
            for number, search in enumerate(items):
                try:
                    text = search_json(with_options(search, options))
                except UNUSABLE as error:
                    unsent[number] = error
                else:
                    yield text

        results: list[SearchResult | Exception] = []
        for answer in self._send_batches("/search/batch", "searches", sent()):
            results += _outcomes(answer, _search_result)
        for number, error in unsent.items():
            results.insert(number, error)
        return results

    def embed_images(self, images: Iterable[ImageLike]) -> npt.NDArray[np.float32]:
        """`(n, dim)` float32, unit norm. RequestRefused names the first unusable picture.

        Takes any number of pictures and sends 64 at a time; from an iterator it reads no more than that ahead.
        """
        items = items_of(images, "picture", "a list of pictures")
        return self._embed("images", (to_json(image_base64(image)) for image in items))

    def embed_texts(self, texts: Iterable[str]) -> npt.NDArray[np.float32]:
        """`(n, dim)` float32, unit norm. Raises RequestRefused if the model does not take text."""
        return self._embed("texts", map(to_json, items_of(texts, "text", "a list of texts")))

    def image(self, image_id: str) -> dict[str, Any]:
        """An image's row by column name, including metadata; times are ISO 8601."""
        row = self._http.json("GET", f"/image?id={_quoted(image_id)}")
        row.pop("picture", None)
        metadata: dict[str, Any] = row.pop("metadata", {})
        return row | metadata

    def picture(self, image_id: str, size: int | None = None) -> bytes:
        """The file of an image, or a JPEG thumbnail whose longer side has at most `size` pixels."""
        thumbnail = "" if size is None else f"&size={size}"
        return self._http.send("GET", f"/picture?id={_quoted(image_id)}{thumbnail}")

    def index(self) -> IndexDetailsOut:
        """The index version that answers: its model, size, recall, speed, and the columns for filters."""
        return cast(IndexDetailsOut, self._http.json("GET", "/index"))

    def versions(self) -> list[VersionOut]:
        """The index versions, oldest first."""
        answer = self._http.json("GET", "/index/versions")
        return _read_answer(lambda answer: cast(list[VersionOut], answer["versions"]), answer)

    def promote(self, version: str) -> SwitchedOut:
        """Make `version` the live one. Needs a key of scope admin if the server requires keys."""
        body = Body.json(to_json({"version": version}))
        return cast(SwitchedOut, self._http.json("POST", "/index/promote", body=body, repeatable=False))

    def rollback(self) -> SwitchedOut:
        """Make the version before the live one live again. Needs a key of scope admin if the server requires keys."""
        return cast(SwitchedOut, self._http.json("POST", "/index/rollback", repeatable=False))

    def _embed(self, name: str, texts: Iterator[str]) -> npt.NDArray[np.float32]:
        vectors: list[npt.NDArray[np.float32]] = []
        models: set[str] = set()
        for answer in self._send_batches("/embed", name, texts):
            for result in _outcomes(answer, lambda numbers: np.array(numbers, np.float32)):
                if isinstance(result, ProblemAnswered):
                    raise refusal(_with_place(result, f"{name}[{len(vectors)}]"))
                vectors.append(result)
            models.add(_read_answer(lambda answer: str(answer["model"]["fingerprint"]), answer))
            if len(models) > 1:
                raise ClientError("expected vectors of one model, but the server has switched models: embed again")
        return np.stack(vectors) if vectors else np.empty((0, self.index()["model"]["dim"]), np.float32)

    def _send_batches(self, path: str, name: str, texts: Iterator[str]) -> Iterator[dict[str, Any]]:
        for batch in _batches(texts):
            body = Body.json(f'{{"{name}": [{", ".join(batch)}]}}')
            try:
                answer = self._http.json("POST", path, body=body)
            except RequestRefused as refused:
                if refused.status != 413 or len(batch) > 1:
                    raise
                answer = {"results": [{"problem": refused.problem}]}  # it is about this one alone
            if _read_answer(lambda answer: len(answer["results"]), answer) != len(batch):
                raise ClientError(f"expected {len(batch)} results from {path}, got {len(answer['results'])}")
            yield answer


def _quoted(image_id: str) -> str:
    return quote(checked_id(image_id), errors="surrogatepass")  # the server has no such id


def _with_place(refused: ProblemAnswered, place: str) -> dict[str, Any]:
    """The problem with an item, at its `place` among all of them; the server's counts within the batch."""
    members = {name: value for name, value in refused.problem.items() if name != "field"}
    detail = refused.detail
    if refused.errors:
        detail = detail.removeprefix(f"{refused.errors[0].get('field')}: ")
        members["errors"] = [{**error, "field": place} for error in refused.errors]
    return {**members, "detail": f"{place}: {detail}"}


def _batches(texts: Iterator[str]) -> Iterator[list[str]]:
    """Batches of JSON texts, in order. One that is over a limit by itself is a batch, which the server may refuse."""
    batch: list[str] = []
    size = values = 0
    for text in texts:
        size += len(text)
        values += text.count(",") + 1
        if batch and (len(batch) == MAX_BATCH or size > _BATCH_BYTES or values > MAX_JSON_VALUES):
            yield batch
            batch, size, values = [], len(text), text.count(",") + 1
        batch.append(text)
    if batch:
        yield batch


def _read_answer(read: Callable[[Any], T], answer: dict[str, Any]) -> T:
    """`read(answer)`. Raises ClientError if the answer does not have the expected form."""
    try:
        return read(answer)
    except (KeyError, TypeError, ValueError) as error:
        raise ClientError(f"the answer is not as expected ({error!r}): is the server another version?") from error


def _outcomes(answer: dict[str, Any], read: Callable[[Any], T]) -> list[T | ProblemAnswered]:
    """The results of a batch: `read` of each document, or its error."""

    def outcome(document: Mapping[str, Any]) -> T | ProblemAnswered:
        problem = document.get("problem")
        return read(document["ok"]) if problem is None else refusal(problem)

    return _read_answer(lambda body: list(map(outcome, body["results"])), answer)


@cache  # made by the first search, as making it takes as long as a tenth of the import
def _matches() -> TypeAdapter[list[Match]]:
    return TypeAdapter(list[Match])


def _search_result(document: Any) -> SearchResult:
    index = document["index"]
    return SearchResult(
        version=index["version"], ntotal=index["ntotal"], model=_identity(document["model"]), **_page(document)
    )


def _collections_result(document: Any) -> CollectionsResult:
    indexes, model = document["indexes"], document["model"]
    return CollectionsResult(
        collections=[match["collection"] for match in document["matches"]],
        versions={name: index["version"] for name, index in indexes.items()},
        ntotal=document["searched"]["of"],
        model=None if model is None else _identity(model),
        **_page(document),
    )


def _page(document: Any) -> dict[str, Any]:
    return {
        "matches": _matches().validate_python(document["matches"]),
        "searched": document["searched"]["rows"],
        "timing_ms": document["timing_ms"],
        **{name: document[name] for name in PageOut.__annotations__},
    }


def _identity(model: Any) -> ModelIdentity:
    return ModelIdentity(
        model_id=model["id"], revision=model["revision"], fingerprint=model["fingerprint"], dim=model["dim"]
    )
