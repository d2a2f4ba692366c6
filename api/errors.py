"""Errors of the package, and the table of problems in answers over HTTP.

ApiError
├── StartError              the server cannot start; the message says what to change
│   ├── OtherModelError     the index holds vectors of another model
│   ├── ListenError         the address is in use, or requires keys or `allow_remote`
│   ├── KeysError           the file of API keys is missing, broken or empty, or lacks a key
│   └── DeployError         Ray Serve gave up on the application
├── Problem                 one request cannot be answered; becomes an RFC 9457 problem document
└── ClientError             LikenessClient got no usable answer
    ├── RequestRefused      the server answered with a problem document
    │   └── TooBusy         the same with status 429, after all retries: retry after `retry_after` seconds
    └── ServerUnreachable   no connection, a broken one, or no answer in time
"""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple


class ApiError(Exception):
    """Base of this package's errors."""


class StartError(ApiError): ...


class OtherModelError(StartError): ...


class ListenError(StartError): ...


class KeysError(StartError): ...


class DeployError(StartError): ...


class Problem(ApiError):  # noqa: N818 (RFC 9457's own word)
    """A request that cannot be answered. `str(error)` is the document's `detail`.

    `slug` is a key of PROBLEMS and determines `type`, `title` and `status`. `extensions` are further members of the
    document, such as `reason`; `retry_after_s` also becomes the header Retry-After.
    """

    def __init__(self, slug: str, detail: str, **extensions: Any) -> None:
        super().__init__(detail)
        self.kind = PROBLEMS[slug]
        self.detail = detail
        self.extensions = extensions

    def with_detail(self, detail: str, **extensions: Any) -> "Problem":
        """The same problem with another detail and further extensions."""
        return Problem(self.kind.slug, detail, **{**self.extensions, **extensions})


class ClientError(ApiError): ...


class RequestRefused(ClientError):  # noqa: N818 (reads better where it is caught)
    """The server answered with the problem document `problem`.

    Distinguish problems by `type`, such as urn:likeness:problem:unusable-image. `errors` lists the invalid fields of a
    request, and `field` names the rejected picture, for example "queries.2.url". `retry_after` is the server's
    Retry-After in seconds, or None.
    """

    def __init__(self, problem: Mapping[str, Any], retry_after: float | None = None) -> None:
        super().__init__(problem, retry_after)
        self.problem = problem
        self.retry_after = retry_after
        self.type = str(problem.get("type", "about:blank"))
        self.status = int(problem.get("status", 0))
        self.detail = str(problem.get("detail", ""))
        self.errors: list[dict[str, str]] = problem.get("errors") or []
        self.field: str | None = problem.get("field")

    def __str__(self) -> str:
        where = "" if self.field is None else f"{self.field}: "
        return f"{where}{self.detail} ({self.type}, HTTP status {self.status})"


class TooBusy(RequestRefused): ...


class ServerUnreachable(ClientError): ...  # noqa: N818 (reads better where it is caught)


class ProblemType(NamedTuple):
    """A kind of problem. `type` never changes its meaning; `status` is the HTTP status it is sent with."""

    slug: str
    status: int
    title: str
    when: str

    @property
    def type(self) -> str:
        return f"urn:likeness:problem:{self.slug}"


# A malformed request is 400; a well-formed one that cannot be used is 422. If another host answers 404 for a picture,
# that is 422 too, because 404 means that this server lacks the page. A host that fails is 502, one that is too slow
# 504; if this server is too slow, it is 503.
_PROBLEM_TYPES: Final = (
    ("malformed-body", 400, "The body cannot be read", "not JSON, or broken multipart"),
    ("unknown-api-version", 400, "No such version of the API", "`API-Version` asks for a version other than 1"),
    ("bad-url", 400, "Not a URL that can be fetched", "`url` cannot be parsed, has no host, or names a user"),
    ("forbidden-scheme", 400, "Only http and https", "`url` is neither http nor https"),
    ("forbidden-address", 400, "This address is not fetched", "`url` or a redirect leads to a private host or port"),
    ("unauthorized", 401, "A key is needed", "the API key is missing or not valid"),
    ("forbidden", 403, "Not allowed", "beyond the key's scope or collections, or remote admin without keys"),
    ("not-found", 404, "No such page", "no route has this path"),
    ("collection-not-found", 404, "No such collection", "this server has no collection of this name"),
    ("image-not-found", 404, "No such image", "the index has no image of this id"),
    ("picture-not-found", 404, "The picture is gone", "the index has the image, but its file is gone"),
    ("method-not-allowed", 405, "Wrong method", "the path exists for other methods, see `Allow`"),
    ("request-timeout", 408, "The body came too slowly", "the body did not arrive in time"),
    ("version-not-usable", 409, "This index version cannot answer", "it is damaged, or there is no earlier usable one"),
    ("too-large", 413, "Too large", "the body, or the picture in it, is over the limit"),
    ("unsupported-media-type", 415, "Wrong content type", "neither JSON nor multipart/form-data, or compressed"),
    ("invalid-request", 422, "The request is not valid", "see `errors`: field, what was expected, and what was sent"),
    ("text-not-supported", 422, "This model does not understand text", "a search by text with an image-only model"),
    ("unusable-image", 422, "Not an image that can be used", "not a picture, broken, or over the limits: see `reason`"),
    ("url-not-usable", 422, "The URL gives no usable answer", "4xx, too many redirects or bytes: see `reason`"),
    ("rate-limited", 429, "Too many requests", "the key or the address has used up its rate: see `Retry-After`"),
    ("overloaded", 429, "Too much at once", "the server is handling as many requests as it can: see `Retry-After`"),
    ("internal", 500, "Something went wrong here", "a defect; the server's log has the details"),
    ("picture-unavailable", 502, "The picture cannot be read", "the image's file or host cannot be read now"),
    ("url-unreachable", 502, "The URL cannot be reached", "unknown host, no connection, or 5xx: see `reason`"),
    ("not-ready", 503, "Not ready", "the server cannot answer queries yet, or its warm-up failed"),
    ("collection-unavailable", 503, "This collection cannot be opened", "it is damaged or unreachable; others answer"),
    ("embedder-unavailable", 503, "The model does not answer", "the model's replicas are unreachable; try again"),
    ("shard-unavailable", 503, "A part of the index does not answer", "try again, or set `allow_partial`"),
    ("timeout", 503, "No answer in time", "the server did not answer within its own time limit; try again"),
    ("out-of-memory", 503, "No memory left", "the picture does not fit into free memory; try again"),
    ("url-timeout", 504, "The URL took too long", "the picture did not arrive in time"),
)
PROBLEMS: Final = {row[0]: ProblemType(*row) for row in _PROBLEM_TYPES}

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, default=repr)


def invalid(field: str, expected: str, got: object) -> Problem:
    """The problem of one invalid field of a request."""
    return invalid_fields([{"field": field, "expected": expected, "got": abbreviate(got)}])


def invalid_fields(errors: list[dict[str, str]]) -> Problem:
    """One problem for all invalid fields; `errors` are dicts of `field`, `expected` and `got`."""
    detail = "; ".join(f"{error['field']}: expected {error['expected']}, got {error['got']}" for error in errors)
    return Problem("invalid-request", detail, errors=errors)


def abbreviate(value: object, limit: int = 80) -> str:
    """`value` as JSON of at most `limit` characters, because callers may send megabytes."""
    text = ""
    # Lazily, because encoding all of a large document would take long.
    for piece in _ENCODER.iterencode(value[: limit + 1] if isinstance(value, str) else value):
        text += piece
        if len(text) > limit:
            text = text[: limit - 1] + "…"
            break
    return text.encode(errors="backslashreplace").decode()  # half of a surrogate pair cannot be encoded
