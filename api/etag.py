"""Bytes that a browser keeps, with their ETag: what it has already is not sent again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import Request, Response


@dataclass(frozen=True, kw_only=True)
class Tagged:
    """`etag` is quoted, and changes with the bytes."""

    data: bytes
    media_type: str
    etag: str

    @classmethod
    def of(cls, data: bytes, media_type: str) -> Tagged:
        return cls(data=data, media_type=media_type, etag=f'"{hashlib.sha256(data).hexdigest()[:32]}"')

    def response(self, request: Request, headers: Mapping[str, str]) -> Response:
        """The bytes with these headers, or 304 where the caller has these very bytes, says If-None-Match."""
        from fastapi import Response  # a search on the command line holds pictures too, and needs no server

        headers = {**headers, "ETag": self.etag}
        given = request.headers.get("if-none-match", "").split(",")
        if any(tag.strip().removeprefix("W/") in (self.etag, "*") for tag in given):
            return Response(status_code=304, headers=headers)
        return Response(self.data, media_type=self.media_type, headers=headers)
