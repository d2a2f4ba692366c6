"""Cursors: where a page of a search ended, in which index version."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from index.errors import OptionError
from index.search_options import Place

_EXPECTED = "the cursor of an earlier answer to the same search"


@dataclass(frozen=True, kw_only=True)
class Cursor:
    """The `place` where a page ended. `search` is the digest of what it has in common with the next one. It was of the
    index version `edition`; or of these `editions` by collection, where it ended at these `places`.
    """

    search: str
    place: Place
    edition: str = ""
    editions: dict[str, str] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)

    def __str__(self) -> str:
        """As answers show it."""
        return base64.urlsafe_b64encode(json.dumps(asdict(self)).encode()).decode().rstrip("=")

    @classmethod
    def read(cls, text: object, search: str) -> Self:
        """The cursor of the search with this digest. OptionError for anything else."""
        try:
            padded = f"{text}{'=' * (-len(str(text)) % 4)}"
            cursor: Self = _adapter().validate_json(base64.b64decode(padded, b"-_", validate=True))
        except (ValueError, ValidationError) as error:
            raise OptionError("cursor", text, _EXPECTED) from error
        if cursor.search != search:
            raise OptionError("cursor", text, _EXPECTED)
        return cursor


@cache
def _adapter() -> TypeAdapter[Any]:
    return TypeAdapter(Cursor)


def digest_of(search: Any) -> str:
    """A digest of what JSON can hold, and of the texts of other values."""
    return hashlib.sha256(json.dumps(search, sort_keys=True, default=str).encode()).hexdigest()[:16]
