"""CURRENT, the file that names the live index version."""

from collections.abc import Callable
from contextlib import suppress

from index.collection.layout import CURRENT
from index.collection.records import Current
from index.errors import DamagedVersionError, OvertakenError
from index.storage import Storage


def read_current(storage: Storage, versions: Callable[[], list[str]]) -> str | None:
    """The live version, or None. DamagedVersionError if CURRENT cannot be read, or is missing beside `versions`."""
    problem = "is missing"
    try:
        found = _read(storage)
        if found is None:
            if not versions():
                return None
            # A first build makes CURRENT and then a version: both may have come since CURRENT was looked for.
            found = _read(storage)
        if found:
            return found.version
    except ValueError as error:
        problem = f"is damaged ({error})"
    raise DamagedVersionError(
        f"CURRENT {problem}: it names the live version of {', '.join(versions()) or 'none'}; `likeness index` "
        "makes the newest good one live, `likeness promote` another",
        CURRENT,
    )


def _read(storage: Storage) -> Current | None:
    with suppress(FileNotFoundError):
        return Current.from_bytes(storage.read(CURRENT))
    return None


def begin_current(storage: Storage) -> None:
    """Make CURRENT, which names no version yet, unless it is there: from now on it is never missing."""
    storage.update(CURRENT, lambda content: content or Current(version=None).to_bytes())


def replace_current(storage: Storage, version: str, before: str | None) -> None:
    """Name `version` in place of `before`, at once. OvertakenError when it names another."""

    def replace(content: bytes) -> bytes:
        now = None  # also where it cannot be read
        with suppress(ValueError):
            now = Current.from_bytes(content).version
        if now not in (before, version):  # it names this one where the answer to an earlier try was lost
            raise OvertakenError(
                f"index version {now} was made live meanwhile, so it stays and {version} is not live: look at "
                f"`likeness versions {storage.location}`, and run this again if you still want it"
            )
        return Current(version=version).to_bytes()

    storage.update(CURRENT, replace)
