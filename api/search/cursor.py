"""Cursors: where a page of a search ended, in which index version."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from index.errors import OptionError
from index.search_options import Place

_EXPECTED = "the cursor of an earlier answer to the same search"


@dataclass(frozen=True, kw_only=True)
class Cursor:
    """The `place` where a page ended. `search` is the digest of what it has in common with the next one. It was of the
    index versions `editions`, by collection; under "" that of the only one.
    """

    search: str
    place: Place
    editions: dict[str, str]

    def __str__(self) -> str:
        """As answers show it."""
        document = {**vars(self), "place": vars(self.place)}  # `asdict` takes 50 µs
        return base64.urlsafe_b64encode(json.dumps(document).encode()).decode().rstrip("=")

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
