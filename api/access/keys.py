"""API keys: a small file of salted hashes, written by `likeness keys` and read again whenever it changes.

A key is 256 random bits, so nobody can guess one from its hash, no matter how fast that is: a slow password hash would
only make each request slower. With the file's salt, equal keys of two files have different hashes.
"""

import fcntl
import hashlib
import hmac
import logging
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from stat import S_ISREG
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from api.errors import KeysError

logger = logging.getLogger(__name__)

PREFIX: Final = "lk_"

# Names appear in logs and messages.
KeyName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]
_Hex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class KeyScope(StrEnum):
    """What a key allows: searching and viewing, or also changing index versions."""

    search = "search"
    admin = "admin"


class StoredKey(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: KeyName
    scope: KeyScope
    hash: _Hex
    created_at: datetime
    collections: tuple[str, ...] | None = None
    """The only collections that it is good for; None: all. Left out of the file then, as earlier releases expect."""

    def allows(self, collection: str) -> bool:
        return self.collections is None or collection in self.collections


class _Contents(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    salt: _Hex
    keys: tuple[StoredKey, ...] = ()

    def find(self, key: bytes) -> StoredKey | None:
        digest = _digest(key, self.salt)
        found = None
        for stored in self.keys:  # all of them, so that the time does not show which one matches
            if hmac.compare_digest(digest, stored.hash):
                found = stored
        return found


class KeyRing:
    """The keys of a file, read again when it has changed. If the file is removed, no key is valid. If it cannot be
    read, or makes no sense, this is reported once, and the keys read before stay valid.

    Raises KeysError when at first there is no such file, or no key in it.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._reported = ""
        self._seen: tuple[int, int, int] | None = _stamp(self._path)
        self._contents = _read(self._path)
        if not self._contents.keys:
            raise KeysError(f"{path} has no key in it, so nobody could ask for anything: {_how_to_add(path)}")

    def find(self, key: bytes) -> StoredKey | None:
        self._refresh()
        return self._contents.find(key)

    def _refresh(self) -> None:
        try:
            stamp = _stamp(self._path)
            if stamp == self._seen:
                return
            self._contents = _read(self._path)
            self._seen, self._reported = stamp, ""
        except KeysError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                self._contents = self._contents.model_copy(update={"keys": ()})
            # Tried again with each request: the file may be readable by then without being another.
            self._seen = None
            if str(error) != self._reported:
                self._reported = str(error)
                logger.error("%s; %d keys are valid", error, len(self._contents.keys))


def list_keys(path: str | Path) -> tuple[StoredKey, ...]:
    """The record of each key. Raises KeysError."""
    return _read(Path(path)).keys


def add_key(path: str | Path, name: str, scope: KeyScope, collections: Iterable[str] = ()) -> str:
    """A new key, which is returned only this once; creates the file. With `collections` it is good for these alone.

    Raises KeysError for a taken or invalid name.
    """
    path = Path(path)
    key = PREFIX + secrets.token_urlsafe(32)
    with _alone(path):
        contents = _read(path) if path.exists() else _Contents(salt=secrets.token_hex(32))
        if any(stored.name == name for stored in contents.keys):
            raise KeysError(f"{path} has a key named {name!r} already: remove it first, or take another name")
        try:
            digest = _digest(key.encode(), contents.salt)
            only = tuple(sorted(set(collections))) or None
            stored = StoredKey(name=name, scope=scope, hash=digest, created_at=datetime.now(UTC), collections=only)
        except ValidationError as error:
            raise KeysError(f"expected a name of up to 64 letters, digits and any of . _ @ -, got {name!r}") from error
        _write(path, contents.model_copy(update={"keys": (*contents.keys, stored)}))
    return key


def remove_key(path: str | Path, name: str) -> None:
    """Remove a key: servers refuse it from their next request on. Raises KeysError when there is none of this name."""
    path = Path(path)
    with _alone(path):
        contents = _read(path)
        left = tuple(stored for stored in contents.keys if stored.name != name)
        if len(left) == len(contents.keys):
            known = ", ".join(stored.name for stored in contents.keys) or "none"
            raise KeysError(f"{path} has no key named {name!r}: there are {known}")
        _write(path, contents.model_copy(update={"keys": left}))


def _digest(key: bytes, salt: str) -> str:
    return hashlib.blake2b(key, key=bytes.fromhex(salt), digest_size=32).hexdigest()


def _stamp(path: Path) -> tuple[int, int, int]:
    """Changes with the file. Raises KeysError."""
    with _naming(path):
        stat = path.stat()
    if not S_ISREG(stat.st_mode):  # reading a pipe would wait for ever
        raise KeysError(f"the key file {path} cannot be read: it is no regular file")
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _read(path: Path) -> _Contents:
    with _naming(path):
        data = path.read_bytes()
    try:
        return _Contents.model_validate_json(data)
    except ValidationError as error:
        raise KeysError(f"{path} is not a file of keys as `likeness keys` writes them") from error


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turns errors of the file system into KeysError."""
    try:
        yield
    except FileNotFoundError as error:
        raise KeysError(f"no key file {path}: {_how_to_add(path)}") from error
    except OSError as error:
        raise KeysError(f"the key file {path} cannot be read: {error.strerror}") from error


def _how_to_add(path: str | Path) -> str:
    return f"add one with `likeness keys add {path} --name NAME`"


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Locks the folder, as the file is replaced: else two keys added at the same time could become one."""
    try:
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise KeysError(f"no folder for the key file {path}: {error.strerror}") from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _write(path: Path, contents: _Contents) -> None:
    from index.storage.disk import write_atomic  # late: pyarrow comes with it

    write_atomic(path.resolve(), f"{contents.model_dump_json(indent=2, exclude_none=True)}\n".encode(), mode=0o600)
