"""What all records have in common: one is a JSON file, or a part of one."""

import hashlib
import json
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from index.collection.records.bounds import Count, Digest, parse_json


class OtherFormatError(ValueError):
    """The record is intact, but another release wrote it."""


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def to_bytes(self) -> bytes:
        """Indented JSON with a `checksum` of everything else."""
        content = self.model_dump(mode="json")
        return (json.dumps({**content, "checksum": _checksum(content)}, indent=2) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what `to_bytes` wrote. ValueError if it is not JSON, not this record, altered, or has a value out of its
        bounds; OtherFormatError if another release wrote it.
        """
        content = parse_json(data)
        if not isinstance(content, dict) or content.pop("checksum", None) != _checksum(content):
            raise ValueError("its content does not match its checksum")
        if (field := cls.model_fields.get("format")) and content.get("format") != field.default:
            raise OtherFormatError(
                f"has format {content.get('format')}, this release of Likeness reads {field.default}"
            )
        # Fields added by a later release must not prevent this one from reading.
        try:
            return cls.model_validate(content, extra="ignore")
        except ValidationError as error:
            raise ValueError(_first_problem(error)) from error


class FileRecord(Record):
    """A file's `size` in bytes, and the hex digest of its content."""

    size: Count
    sha256: Digest


def _first_problem(error: ValidationError) -> str:
    """Field, problem and value, on one line."""
    first = error.errors()[0]
    field = ".".join(str(part)[:40] for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    return f"{field}: {message}, got {str(first['input'])[:60]!r}" if field else message


def _checksum(content: dict[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
