"""CURRENT, the file that names the live index version."""

from contextlib import suppress

from index.collection.layout import CURRENT
from index.collection.records import Current
from index.errors import OvertakenError
from index.storage import Storage
from index.storage.compare_and_set import update_file


def read_current(storage: Storage) -> Current | None:
    """None when it is missing. ValueError when it is damaged."""
    try:
        return Current.from_bytes(storage.read(CURRENT))
    except FileNotFoundError:
        return None


def begin_current(storage: Storage) -> None:
    """Make CURRENT, which names no version yet, unless it is there: from now on it is never missing."""
    update_file(storage, CURRENT, lambda content: content or Current(version=None).to_bytes())


def replace_current(storage: Storage, version: str, before: str | None) -> None:
    """Name `version` in place of `before`, at once. OvertakenError when it names another."""

    def replace(content: bytes) -> bytes:
        now = None  # also where it cannot be read
        with suppress(ValueError):
            now = Current.from_bytes(content).version
        if now not in (before, version):  # it names this one where the answer to an earlier try was lost
            raise OvertakenError(
                f"index version {now} was made live meanwhile, so that stays and {version} is not live: look at "
                f"`likeness versions {storage.location}`, and run this again if you still want it"
            )
        return Current(version=version).to_bytes()

    update_file(storage, CURRENT, replace)
