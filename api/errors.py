"""Errors of the package, and the table of the problems that the HTTP interface answers with.

ApiError
├── StartError              the server cannot start; the message says what to change
│   ├── OtherModelError     the index holds vectors of another model
│   ├── ListenError         an address that may not be listened on (no keys, no `allow_remote`), or is taken
│   ├── KeysError           the file of API keys is missing, broken or empty, or has no such key
│   └── DeployError         Ray Serve gave up on the application
├── Problem                 one request cannot be answered; becomes an RFC 9457 problem document
└── ClientError             LikenessClient has no answer to give
    ├── RequestRefused      the server answered with a problem document
    │   └── TooBusy         with 429, after all retries
    └── ServerUnreachable   no connection, a broken one, or no answer in time
"""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple


class ApiError(Exception):
    """Base of everything that this package raises on purpose."""


class StartError(ApiError): ...


class OtherModelError(StartError): ...


class ListenError(StartError): ...


class KeysError(StartError): ...


class DeployError(StartError): ...


class Problem(ApiError):  # noqa: N818 (RFC 9457's own word)
    """A request that cannot be answered. `str(error)` is the document's `detail`.

    `slug` is a key of PROBLEMS and gives `type`, `title` and `status`; `extensions` are further members of
    the document, such as `reason`; `retry_after_s` is the header Retry-After as well.
    """

    def __init__(self, slug: str, detail: str, **extensions: Any) -> None:
        super().__init__(detail)
        self.kind = PROBLEMS[slug]
        self.detail = detail
        self.extensions = extensions

    def saying(self, detail: str, **extensions: Any) -> "Problem":
        """The same in other words."""
        return Problem(self.kind.slug, detail, **{**self.extensions, **extensions})


class ClientError(ApiError): ...


class RequestRefused(ClientError):  # noqa: N818 (reads better where it is caught)
    """The server answered with the problem document `problem`.

    Tell problems apart by `type`, such as urn:likeness:problem:unusable-image; `errors` say what is wrong with which
    field of an invalid request, `field` which picture was rejected: "queries.2.url", say. `retry_after`: the seconds
    that the server asked to wait for, or None.
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


class TooBusy(RequestRefused):
    """The server has no room for this request, or this key has used up its rate: try again in `retry_after` s."""


class ServerUnreachable(ClientError):  # noqa: N818 (reads better where it is caught)
    """There is no connection to the server, it broke, or the answer did not come in time."""


class ProblemType(NamedTuple):
    """A kind of problem. `type` never changes its meaning; `status` is the HTTP status it is sent with."""

    slug: str
    status: int
    title: str
    when: str

    @property
    def type(self) -> str:
        return f"urn:likeness:problem:{self.slug}"


# A malformed request is 400; one that is well formed but cannot be used is 422. A host's 404 for a picture is 422 too:
# a 404 from us would mean that *our* page is missing. A host that fails is 502, one that is too slow 504. If this
# server itself is too slow, no gateway is to blame: 503.
_PROBLEM_TYPES: Final = (
    ("malformed-body", 400, "The body cannot be read", "not JSON, or broken multipart"),
    ("unknown-api-version", 400, "No such version of the API", "`API-Version` asks for a version other than 1"),
    ("bad-url", 400, "Not a URL that can be fetched", "`url` cannot be parsed, has no host, or names a user"),
    ("forbidden-scheme", 400, "Only http and https", "`url` is neither http nor https"),
    ("forbidden-address", 400, "This address is not fetched", "`url` or a redirect leads to a private host or port"),
    ("unauthorized", 401, "A key is needed", "the API key is missing or not valid"),
    (
        "forbidden",
        403,
        "Not allowed",
        "beyond the key's scope or collections; or admin without keys from another machine",
    ),
    ("not-found", 404, "No such page", "no route has this path"),
    ("collection-not-found", 404, "No such collection", "this server has no collection of this name"),
    ("image-not-found", 404, "No such image", "the index has no image of this id"),
    ("picture-not-found", 404, "The picture is gone", "the index has the image, but its file is gone"),
    ("method-not-allowed", 405, "Wrong method", "the path exists for other methods, see `Allow`"),
    ("request-timeout", 408, "The body came too slowly", "the body did not arrive in time"),
    ("version-not-usable", 409, "This index version cannot answer", "it is damaged, or no earlier one is good"),
    ("too-large", 413, "Too large", "the body, or the picture in it, is over the limit"),
    ("unsupported-media-type", 415, "Wrong content type", "neither JSON nor multipart/form-data, or compressed"),
    ("invalid-request", 422, "The request is not valid", "see `errors`: field, what was expected, what came"),
    ("text-not-supported", 422, "This model does not understand text", "a search by text with an image-only model"),
    ("unusable-image", 422, "Not an image that can be used", "not a picture, broken, or over the limits: see `reason`"),
    ("url-not-usable", 422, "The URL gives no usable answer", "4xx, too many redirects or bytes: see `reason`"),
    ("rate-limited", 429, "Too many requests", "the key or the address has used up its rate: see `Retry-After`"),
    ("overloaded", 429, "Too much at once", "the server has as many requests as it can take: see `Retry-After`"),
    ("internal", 500, "Something went wrong here", "a defect; the server's log has the details"),
    ("picture-unavailable", 502, "The picture cannot be read", "the image's file or host cannot be read now"),
    ("url-unreachable", 502, "The URL cannot be reached", "unknown host, no connection, or 5xx: see `reason`"),
    ("not-ready", 503, "Not ready", "the server cannot answer queries yet, or its warm-up failed"),
    ("collection-unavailable", 503, "This collection cannot be opened", "it is damaged or out of reach; others answer"),
    ("embedder-unavailable", 503, "The model does not answer", "what embeds the queries is out of reach; try again"),
    ("shard-unavailable", 503, "A part of the index does not answer", "try again, or set `allow_partial`"),
    ("timeout", 503, "No answer in time", "the server did not answer within its own time limit; try again"),
    ("out-of-memory", 503, "No memory left", "the picture does not fit into free memory; try again"),
    ("url-timeout", 504, "The URL took too long", "the picture did not arrive in time"),
)
PROBLEMS: Final = {row[0]: ProblemType(*row) for row in _PROBLEM_TYPES}

_WRITER: Final = json.JSONEncoder(ensure_ascii=False, default=repr)


def invalid(field: str, expected: str, got: object) -> Problem:
    """The problem of one field of a request that is not what was expected."""
    return invalid_fields([{"field": field, "expected": expected, "got": abbreviate(got)}])


def invalid_fields(errors: list[dict[str, str]]) -> Problem:
    """One problem for all the fields that are wrong; `errors` are dicts of `field`, `expected` and `got`."""
    detail = "; ".join(f"{error['field']}: expected {error['expected']}, got {error['got']}" for error in errors)
    return Problem("invalid-request", detail, errors=errors)


def abbreviate(value: object, limit: int = 80) -> str:
    """`value` as JSON, cut: messages quote what a caller sent, but not megabytes of it."""
    text = ""
    # Lazily, since all of a document of megabytes would take long.
    for piece in _WRITER.iterencode(value[: limit + 1] if isinstance(value, str) else value):
        text += piece
        if len(text) > limit:
            text = text[: limit - 1] + "…"
            break
    return text.encode(errors="backslashreplace").decode()  # half of a surrogate pair cannot be sent
