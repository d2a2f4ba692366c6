"""Which files of a source are left out by their names: hidden ones, those in folders that file servers and desktops
fill by themselves, and those that the user excludes.
"""

from collections.abc import Sequence
from functools import lru_cache

from pathspec import GitIgnoreSpec
from pathspec.patterns.gitignore.base import GitIgnorePatternError

HIDDEN = "hidden"
EXCLUDED = "excluded"
_SYSTEM_FOLDERS = frozenset(
    (
        # file servers of Synology, QNAP and others
        *("@eadir", "#recycle", "#snapshot", "@recycle", "@recently-snapshot", "@__thumb", "@tmp", "~snapshot"),
        # Windows, Linux and macOS
        *("$recycle.bin", "recycler", "recycled", "recycle bin", "system volume information", "thumbs", "lost+found"),
        *("__macosx", "network trash folder", "temporary items"),
    )
)


def checked_patterns(patterns: Sequence[str]) -> tuple[str, ...]:
    """The patterns, written as in a .gitignore; ValueError for one that can match nothing."""
    for pattern in patterns:
        try:
            matches = any(each.include is not None for each in _compiled((pattern,)).patterns)
        except GitIgnorePatternError:
            matches = False
        parts = pattern.strip().removeprefix("!").strip("/").split("/")
        if not matches or {"", ".", ".."}.intersection(parts):
            raise ValueError(f"is {pattern!r}: expected a pattern such as *.gif, thumbnails/ or 2023/raw")
    return tuple(patterns)


class Exclusions:
    """Says why the files of a source are left out. Of several patterns that match, the last one decides; one with a
    leading `!` takes in what would be left out.
    """

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        self._patterns = _compiled(checked_patterns(patterns)) if patterns else None
        self._reason_of_folder = lru_cache(4096)(self._uncached_reason_of_folder)

    @property
    def has_patterns(self) -> bool:
        return self._patterns is not None

    def reason(self, path: str) -> str | None:
        """Why a file is left out, or None; `path` is below the source's root."""
        folder, _, name = path.rpartition("/")
        return self.reason_of_folder(folder) or self._reason(path, HIDDEN if _is_hidden(name) else None)

    def excludes(self, path: str) -> bool:
        """Whether a pattern excludes a file, however it is called otherwise."""
        return self._patterns is not None and self._patterns.match_file(path)

    def reason_of_folder(self, folder: str) -> str | None:
        """Why everything below a folder is left out, or None."""
        return self._reason_of_folder(folder) if folder else None

    def _uncached_reason_of_folder(self, folder: str) -> str | None:
        above, _, name = folder.rpartition("/")
        if reason := self.reason_of_folder(above):
            return reason
        by_default = HIDDEN if _is_hidden(name) else f"in {name}" if name.lower() in _SYSTEM_FOLDERS else None
        return self._reason(f"{folder}/", by_default)

    def _reason(self, path: str, by_default: str | None) -> str | None:
        matches = self._patterns.check_file(path).include if self._patterns else None
        return by_default if matches is None else EXCLUDED if matches else None


def _is_hidden(name: str) -> bool:
    return name.startswith(".") and name != ".."  # which is in the paths of some tars


def _compiled(patterns: Sequence[str]) -> GitIgnoreSpec:
    # In a file, lines that begin with # are comments.
    return GitIgnoreSpec.from_lines(f"\\{pattern}" if pattern.startswith("#") else pattern for pattern in patterns)
