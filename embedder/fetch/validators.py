"""What a web server says about the state of a picture, to ask later whether it has changed."""

import email.utils
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

_ETAG = re.compile(r'(?:W/)?"[\x21\x23-\x7e]{0,250}"')


@dataclass(frozen=True, kw_only=True)
class Validators:
    """The `ETag` and `Last-Modified` of an answer; None where it had none that can be sent back."""

    etag: str | None = None
    modified: datetime | None = None

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Self:
        etag, modified = headers.get("ETag", "").strip(), None
        try:
            modified = email.utils.parsedate_to_datetime(headers.get("Last-Modified", ""))
            modified = (modified if modified.tzinfo else modified.replace(tzinfo=UTC)).astimezone(UTC)
        except (ValueError, OverflowError):
            modified = None  # no date, or one outside of the calendar
        return cls(etag=etag if _ETAG.fullmatch(etag) else None, modified=modified)

    @property
    def conditions(self) -> dict[str, str]:
        """The headers that ask for the picture only if it has changed; empty if nothing is known."""
        headers = {"If-None-Match": self.etag} if self.etag else {}
        if self.modified:
            headers["If-Modified-Since"] = email.utils.format_datetime(self.modified.astimezone(UTC), usegmt=True)
        return headers


UNKNOWN = Validators()


@dataclass(frozen=True, kw_only=True)
class Download:
    """A picture's bytes, None if it has not changed, and what to ask with the next time."""

    data: bytes | None
    validators: Validators = UNKNOWN
