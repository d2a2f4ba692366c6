"""What a listing says of a file."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from obstore import ObjectMeta


@dataclass(frozen=True, kw_only=True, slots=True)
class FileInfo:
    """A file or a folder. `path` is relative to the storage's root; `size` in bytes, 0 for a folder."""

    path: str
    size: int
    is_folder: bool
    modified: datetime | None = field(default=None, compare=False)
    """In UTC; None for a folder of a bucket."""
    etag: str | None = field(default=None, compare=False)
    """That of an object, mostly a hash of its content; it changes whenever the object is rewritten."""

    @classmethod
    def of_status(cls, path: str, status: os.stat_result) -> Self:
        is_folder = stat.S_ISDIR(status.st_mode)
        modified = datetime.fromtimestamp(status.st_mtime, UTC)
        return cls(path=path, size=0 if is_folder else status.st_size, is_folder=is_folder, modified=modified)

    @classmethod
    def of_object(cls, path: str, found: ObjectMeta | None) -> Self:
        """An object; a folder of a bucket if it is None."""
        if found is None:
            return cls(path=path, size=0, is_folder=True)
        size, modified, etag = found["size"], found["last_modified"], found["e_tag"]
        return cls(path=path, size=size, is_folder=False, modified=modified, etag=etag)

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]
