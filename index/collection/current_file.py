"""CURRENT, the file that names the live index version."""

from collections.abc import Callable
from contextlib import suppress

from index.collection.layout import CURRENT
from index.collection.records.bounds import VersionName
from index.collection.records.record import Record
from index.errors import DamagedVersionError, OvertakenError
from index.storage import Storage


class Current(Record):
    """`CURRENT`: the live version; None if none has gone live yet."""

    version: VersionName | None


def read_current(storage: Storage, versions: Callable[[], list[str]]) -> str | None:
    """The live version, or None. DamagedVersionError if CURRENT cannot be read, or is missing beside `versions`."""
    problem = "is missing"
    try:
        current = _read(storage)
        if current is None:
            if not versions():
                return None
            # A first build makes CURRENT and then a version: both may have appeared since CURRENT was read.
            current = _read(storage)
        if current:
            return current.version
    except ValueError as error:
        problem = f"is damaged ({error})"
    raise DamagedVersionError(
        f"CURRENT {problem}, so it is unknown which version is live. Versions: {', '.join(versions()) or 'none'}; "
        "`likeness index` makes the newest good one live, `likeness promote` another",
        CURRENT,
    )


def _read(storage: Storage) -> Current | None:
    with suppress(FileNotFoundError):
        return Current.from_bytes(storage.read(CURRENT))
    return None


def begin_current(storage: Storage) -> None:
    """Create CURRENT, naming no version yet, unless it exists. From then on, a missing CURRENT means damage."""
    storage.update(CURRENT, lambda content: content or Current(version=None).to_bytes())


def replace_current(storage: Storage, version: str, before: str | None) -> None:
    """Replace `before` with `version` in CURRENT, atomically. OvertakenError if it names another version."""

    def replace(content: bytes) -> bytes:
        now = None  # also if it cannot be read
        with suppress(ValueError):
            now = Current.from_bytes(content).version
        if now not in (before, version):  # already `version` if the answer to an earlier attempt was lost
            raise OvertakenError(
                f"index version {now} was made live meanwhile, so it stays live and {version} is not: see "
                f"`likeness versions {storage.location}`, and run this again if you still want it"
            )
        return Current(version=version).to_bytes()

    storage.update(CURRENT, replace)
