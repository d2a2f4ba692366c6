"""API keys: a small file of salted hashes, written by `likeness keys` and read again whenever it changes.

A key is 256 random bits, so it cannot be guessed from its hash, however fast the hash is; a slow password hash would
only slow down each request. Because of the file's salt, equal keys in two files have different hashes.
"""

import fcntl
import hashlib
import hmac
import logging
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from stat import S_ISREG
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from api.errors import KeysError
from api.problems import Unauthorized

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
    """The collections that the key is valid for; None, which is omitted from the file, means all."""

    def allows(self, collection: str) -> bool:
        return self.collections is None or collection in self.collections


class _KeyFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    salt: _Hex
    keys: tuple[StoredKey, ...] = ()

    def find(self, key: bytes) -> StoredKey | None:
        digest = _digest(key, self.salt)
        return next((stored for stored in self.keys if hmac.compare_digest(digest, stored.hash)), None)


class KeyRing:
    """The keys of a file, read again when it has changed. If the file is removed, no key is valid. If it cannot be
    read or parsed, this is logged once, and the keys read before stay valid.

    The constructor raises KeysError if the file is missing, broken or without keys.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._reported = ""
        self._seen: tuple[int, int, int] | None = _stamp(self._path)
        self._contents = _read(self._path)
        if not self._contents.keys:
            raise KeysError(f"{path} has no key in it, so every request would be refused: {_how_to_add(path)}")

    def find(self, key: bytes) -> StoredKey | None:
        self._refresh()
        return self._contents.find(key)

    def authenticate(self, headers: Mapping[str, str]) -> StoredKey:
        """The key of a request. Raises Unauthorized for a missing or invalid one."""
        scheme, _, sent = headers.get("authorization", "").partition(" ")
        key = sent.strip() if scheme.lower() == "bearer" else headers.get("x-api-key")
        if key is None:
            raise Unauthorized("expected a key as `Authorization: Bearer KEY` or `X-API-Key: KEY`, got none")
        # Header values are bytes, which Starlette reads as latin-1.
        if (found := self.find(key.encode("latin-1"))) is None:
            raise Unauthorized("the key is not valid: it is mistyped, was removed, or belongs to another server")
        return found

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
            # Try again with each request: the file may become readable without having changed.
            self._seen = None
            if str(error) != self._reported:
                self._reported = str(error)
                logger.error("%s; %d keys are valid", error, len(self._contents.keys))


def list_keys(path: str | Path) -> tuple[StoredKey, ...]:
    """The records of all keys. Raises KeysError."""
    return _read(Path(path)).keys


def add_key(path: str | Path, name: str, scope: KeyScope, collections: Iterable[str] = ()) -> str:
    """Add a key and return it; only its hash is stored. Creates the file if necessary.

    With `collections` the key is valid for these only. Raises KeysError for a taken or invalid name.
    """
    path = Path(path)
    key = PREFIX + secrets.token_urlsafe(32)
    with _locked(path):
        contents = _read(path) if path.exists() else _KeyFile(salt=secrets.token_hex(32))
        if any(stored.name == name for stored in contents.keys):
            raise KeysError(f"{path} already has a key named {name!r}: remove it first, or choose another name")
        try:
            digest = _digest(key.encode(), contents.salt)
            allowed = tuple(sorted(set(collections))) or None
            stored = StoredKey(name=name, scope=scope, hash=digest, created_at=datetime.now(UTC), collections=allowed)
        except ValidationError as error:
            raise KeysError(f"expected a name of up to 64 letters, digits and any of . _ @ -, got {name!r}") from error
        _write(path, contents.model_copy(update={"keys": (*contents.keys, stored)}))
    return key


def remove_key(path: str | Path, name: str) -> None:
    """Remove a key: servers refuse it from the next request. Raises KeysError if there is no key of this name."""
    path = Path(path)
    with _locked(path):
        contents = _read(path)
        remaining = tuple(stored for stored in contents.keys if stored.name != name)
        if len(remaining) == len(contents.keys):
            names = ", ".join(stored.name for stored in contents.keys) or "none"
            raise KeysError(f"{path} has no key named {name!r}, only: {names}")
        _write(path, contents.model_copy(update={"keys": remaining}))


def _digest(key: bytes, salt: str) -> str:
    return hashlib.blake2b(key, key=bytes.fromhex(salt), digest_size=32).hexdigest()


def _stamp(path: Path) -> tuple[int, int, int]:
    """Inode, size and modification time, which tell whether the file has changed. Raises KeysError."""
    with _file_errors(path):
        stat = path.stat()
    if not S_ISREG(stat.st_mode):  # reading a pipe would wait for ever
        raise KeysError(f"the key file {path} cannot be read: it is not a regular file")
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _read(path: Path) -> _KeyFile:
    with _file_errors(path):
        data = path.read_bytes()
    try:
        return _KeyFile.model_validate_json(data)
    except ValidationError as error:
        raise KeysError(f"{path} is not a file of keys written by `likeness keys`") from error


@contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    """Turns file system errors into KeysError."""
    try:
        yield
    except FileNotFoundError as error:
        raise KeysError(f"no key file {path}: {_how_to_add(path)}") from error
    except OSError as error:
        raise KeysError(f"the key file {path} cannot be read: {error.strerror}") from error


def _how_to_add(path: str | Path) -> str:
    return f"add one with `likeness keys add {path} --name NAME`"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Locks the folder, because the file is replaced: one of two keys added at the same time could be lost."""
    try:
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise KeysError(f"no folder for the key file {path}: {error.strerror}") from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _write(path: Path, contents: _KeyFile) -> None:
    from index.storage.disk import write_atomic  # here, because it imports pyarrow

    data = f"{contents.model_dump_json(indent=2, exclude_none=True)}\n".encode()
    try:
        # A server that runs as another user must be able to read it as before, or a removed key stays valid.
        write_atomic(path.resolve(), data, private=True)
    except PermissionError as error:
        raise KeysError(
            f"{path} cannot be written ({error.strerror}): expected root, or its owner if in its group, to change it"
        ) from error
