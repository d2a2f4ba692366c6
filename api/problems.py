"""Why a request cannot be answered: a class for each kind of problem, and which routes may answer with it.

`api/http/problem_responses.py` makes the responses, and documents them.
"""

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Self

from api.errors import ApiError


class Problem(ApiError):  # noqa: N818 (RFC 9457's own word)
    """A request that cannot be answered. `str(error)` is the document's `detail`.

    A subclass declares its `slug`, which is part of the document's `type` and never changes its meaning, and the
    document's `status` and `title`; its docstring says when it is raised, and its `example` is for the documentation.
    `extensions` are further members of the document, such as `reason`; `retry_after_s` also becomes the header
    Retry-After.
    """

    slug: ClassVar[str]
    type: ClassVar[str]
    status: ClassVar[int]
    title: ClassVar[str]
    example: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls, *, slug: str, status: int, title: str) -> None:
        cls.slug, cls.type, cls.status, cls.title = slug, f"urn:likeness:problem:{slug}", status, title

    def __init__(self, detail: str, **extensions: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.extensions = extensions

    def with_detail(self, detail: str, **extensions: Any) -> Self:
        """The same problem with another detail and further extensions."""
        return self.__class__(detail, **{**self.extensions, **extensions})

    def document(self) -> dict[str, Any]:
        return {"type": self.type, "title": self.title, "status": self.status, "detail": self.detail, **self.extensions}


# A malformed request is 400; a well-formed one that cannot be used is 422. If another host answers 404 for a picture,
# that is 422 too, because 404 means that this server lacks the page. A host that fails is 502, one that is too slow
# 504; if this server is too slow, it is 503.
class MalformedBody(Problem, slug="malformed-body", status=400, title="The body cannot be read"):
    """not JSON, or broken multipart"""


class UnknownApiVersion(Problem, slug="unknown-api-version", status=400, title="No such version of the API"):
    """`API-Version` asks for a version other than 1"""


class BadUrl(Problem, slug="bad-url", status=400, title="Not a URL that can be fetched"):
    """`url` cannot be parsed, has no host, or names a user"""


class ForbiddenScheme(Problem, slug="forbidden-scheme", status=400, title="Only http and https"):
    """`url` is neither http nor https"""


class ForbiddenAddress(Problem, slug="forbidden-address", status=400, title="This address is not fetched"):
    """`url` or a redirect leads to a private host or port"""

    example: ClassVar[Mapping[str, Any]] = {
        "detail": "http://intranet/cat.jpg: the host is neither on the public internet nor an allowed host; the server "
        "allows one that --allow-host names",
        "field": "url",
        "reason": "forbidden_address",
        "stage": "fetch",
        "retryable": False,
    }


class Unauthorized(Problem, slug="unauthorized", status=401, title="A key is needed"):
    """the API key is missing or not valid"""


class Forbidden(Problem, slug="forbidden", status=403, title="Not allowed"):
    """beyond the key's scope or collections, or remote admin without keys"""


class NotFound(Problem, slug="not-found", status=404, title="No such page"):
    """no route has this path"""


class CollectionNotFound(Problem, slug="collection-not-found", status=404, title="No such collection"):
    """this server has no collection of this name"""


class ImageNotFound(Problem, slug="image-not-found", status=404, title="No such image"):
    """the index has no image of this id"""


class PictureNotFound(Problem, slug="picture-not-found", status=404, title="The picture is gone"):
    """the index has the image, but its file is gone"""


class MethodNotAllowed(Problem, slug="method-not-allowed", status=405, title="Wrong method"):
    """the path exists for other methods, see `Allow`"""


class RequestTimeout(Problem, slug="request-timeout", status=408, title="The body came too slowly"):
    """the body did not arrive in time"""


class VersionNotUsable(Problem, slug="version-not-usable", status=409, title="This index version cannot answer"):
    """it is damaged, or there is no earlier usable one"""


class VersionGone(Problem, slug="version-gone", status=410, title="This index version is gone"):
    """`cursor` is of a version that this server no longer has: search again without it"""


class TooLarge(Problem, slug="too-large", status=413, title="Too large"):
    """the body, or the picture in it, is over the limit"""


class UnsupportedMediaType(Problem, slug="unsupported-media-type", status=415, title="Wrong content type"):
    """neither JSON nor multipart/form-data, or compressed"""


class InvalidRequest(Problem, slug="invalid-request", status=422, title="The request is not valid"):
    """see `errors`: field, what was expected, and what was sent"""

    example: ClassVar[Mapping[str, Any]] = {
        "detail": "k: expected a whole number from 1 to 1,000, got 0",
        "errors": [{"field": "k", "expected": "a whole number from 1 to 1,000", "got": "0"}],
    }


class TextNotSupported(Problem, slug="text-not-supported", status=422, title="This model does not understand text"):
    """a search by text with an image-only model"""


class UnusableImage(Problem, slug="unusable-image", status=422, title="Not an image that can be used"):
    """not a picture, broken, or over the limits: see `reason`"""

    example: ClassVar[Mapping[str, Any]] = {
        "detail": "expected a picture, but this looks like plain text",
        "field": "image",
        "reason": "not_an_image",
        "stage": "decode",
        "retryable": False,
    }


class UrlNotUsable(Problem, slug="url-not-usable", status=422, title="The URL gives no usable answer"):
    """4xx, too many redirects or bytes: see `reason`"""


class RateLimited(Problem, slug="rate-limited", status=429, title="Too many requests"):
    """the key or the address has used up its rate: see `Retry-After`"""


class Overloaded(Problem, slug="overloaded", status=429, title="Too much at once"):
    """the server is handling as many requests as it can: see `Retry-After`"""


class Internal(Problem, slug="internal", status=500, title="Something went wrong here"):
    """a defect; the server's log has the details"""


class PictureUnavailable(Problem, slug="picture-unavailable", status=502, title="The picture cannot be read"):
    """the image's file or host cannot be read now"""


class UrlUnreachable(Problem, slug="url-unreachable", status=502, title="The URL cannot be reached"):
    """unknown host, no connection, or 5xx: see `reason`"""


class NotReady(Problem, slug="not-ready", status=503, title="Not ready"):
    """the server cannot answer queries yet, or its warm-up failed"""


class CollectionUnavailable(
    Problem, slug="collection-unavailable", status=503, title="This collection cannot be opened"
):
    """it is damaged or unreachable; others answer"""


class EmbedderUnavailable(Problem, slug="embedder-unavailable", status=503, title="The model does not answer"):
    """the model's replicas are unreachable; try again"""


class ShardUnavailable(Problem, slug="shard-unavailable", status=503, title="A part of the index does not answer"):
    """try again, or set `allow_partial`"""


class AnswerTimeout(Problem, slug="timeout", status=503, title="No answer in time"):
    """the server did not answer within its own time limit; try again"""


class OutOfMemory(Problem, slug="out-of-memory", status=503, title="No memory left"):
    """the picture does not fit into free memory; try again"""


class UrlTimeout(Problem, slug="url-timeout", status=504, title="The URL took too long"):
    """the picture did not arrive in time"""


PROBLEMS: Final = {kind.slug: kind for kind in Problem.__subclasses__()}
"""All problems, by slug."""
COMMON_PROBLEMS: Final = (UnknownApiVersion, InvalidRequest, Internal)
"""Problems of every route."""
GUARDED_PROBLEMS: Final = (RateLimited, Overloaded, AnswerTimeout, CollectionUnavailable)
"""Problems of every route that is limited."""
KEY_PROBLEMS: Final = (Unauthorized, Forbidden)
"""Problems of every route that needs a key."""
BODY_PROBLEMS: Final = (MalformedBody, RequestTimeout, TooLarge, UnsupportedMediaType)
"""Problems of every route that reads a body."""
SEARCH_PROBLEMS: Final = (
    *(InvalidRequest, BadUrl, ForbiddenScheme, ForbiddenAddress),
    *(UrlNotUsable, UrlUnreachable, UrlTimeout),
    *(TextNotSupported, UnusableImage, ShardUnavailable),
    *(PictureNotFound, PictureUnavailable, ImageNotFound, VersionGone),
)

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, default=repr)


def invalid(field: str, expected: str, got: object) -> InvalidRequest:
    """The problem of one invalid field of a request."""
    return invalid_fields([{"field": field, "expected": expected, "got": abbreviate(got)}])


def invalid_fields(errors: list[dict[str, str]]) -> InvalidRequest:
    """One problem for all invalid fields; `errors` are dicts of `field`, `expected` and `got`."""
    detail = "; ".join(f"{error['field']}: expected {error['expected']}, got {error['got']}" for error in errors)
    return InvalidRequest(detail, errors=errors)


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
