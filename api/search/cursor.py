"""Cursors: where a page of a search ended, in which index version."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Annotated, Any, Self

from pydantic import Field, TypeAdapter, ValidationError

from index.errors import OptionError

_EXPECTED = "the cursor of an earlier answer to the same search"


@dataclass(frozen=True, kw_only=True)
class Cursor:
    """The end of a page, after `seen` matches. The next one begins after the image `image_id`, whose score is `score`;
    if that is None, at the offset `seen`. `search` is the digest of what both pages have in common. The page was of the
    index version `edition`, or of these `editions` by collection.
    """

    search: str
    seen: Annotated[int, Field(ge=0, le=2**53)]
    edition: str = ""
    editions: dict[str, str] = field(default_factory=dict)
    image_id: str | None = None
    score: float | None = None

    def __str__(self) -> str:
        """As answers show it."""
        return base64.urlsafe_b64encode(json.dumps(asdict(self)).encode()).decode().rstrip("=")

    @classmethod
    def read(cls, text: object, search: str, *, by_offset: bool) -> Self:
        """The cursor of the search with this digest, whose pages begin at offsets or not. OptionError for anything
        else.
        """
        try:
            padded = f"{text}{'=' * (-len(str(text)) % 4)}"
            cursor: Self = _adapter().validate_json(base64.b64decode(padded, b"-_", validate=True))
        except (ValueError, ValidationError) as error:
            raise OptionError("cursor", text, _EXPECTED) from error
        if cursor.search != search or (cursor.image_id is None) != (by_offset or bool(cursor.editions)):
            raise OptionError("cursor", text, _EXPECTED)
        return cursor


@cache
def _adapter() -> TypeAdapter[Any]:
    return TypeAdapter(Cursor)


def digest_of(search: Any) -> str:
    """A digest of what JSON can hold, and of the texts of other values."""
    return hashlib.sha256(json.dumps(search, sort_keys=True, default=str).encode()).hexdigest()[:16]
