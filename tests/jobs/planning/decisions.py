"""The words of a plan: the action of each image, and why."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

Image = dict[str, Any]
"""The columns of a listed image, or of a row; `label` stands for all metadata."""

Action = Literal["keep", "copy", "embed", "refuse", "delete"]
WHYS: Final = {
    "gone": "not listed any more: its row is deleted, or stays as it is",
    "resumed": "no live row covers it, but one of an unfinished run does",
    "postponed": "a reject that may pass, but is not tried again yet",
    "unchanged": "its live row stays",
    "filtered": "the filter leaves it out, and no file has to be read for that",
    "refused": "the listing refuses it, such as a repeated id",
    "moved": "a new id in its source, with the content of an image that is gone",
    "copied": "a new id with a known outcome",
    "new": "a new id",
    "other_model": "its live row is of another model",
    "retried": "its live row is a reject that may pass",
    "relabelled": "its metadata changed",
    "other_exif": "its live row has EXIF and is to have none, or the reverse",
    "other_keep": "this job's filter decides otherwise, or has to read the file",
    "touched": "its file seems to have changed, but has the content of its live row",
    "changed": "its file changed",
}
"""Why an image gets its action, in order of precedence: the first that is true."""

Status = Literal["unchanged", "new", "changed", "retried", "other_model", "missing"]


class Decision(NamedTuple):
    """`status` is that of the image by its live row alone, as `Counts` has it; all counts are sums over decisions."""

    action: Action
    why: str
    status: Status


@dataclass(kw_only=True, eq=False)
class Run:
    """A run and its rows, by file, as its manifest has them once it is committed. Each row has its `run`."""

    source: str
    model: str
    keep: str | None
    """The key of its filter."""
    exif: bool
    files: dict[str, list[Image]] = field(default_factory=dict)
    deletes: list[str] = field(default_factory=list)
    committed: bool = False

    @property
    def blocks(self) -> list[list[Image]]:
        """The rows of each file, oldest first: names of unfinished runs' files sort by attempt."""
        return [self.files[name] for name in (self.files if self.committed else sorted(self.files))]


@dataclass(frozen=True, kw_only=True)
class Keep:
    """A filter. `judge` returns whether it leaves an image out by what is known, and whether it knows all it needs.

    `measured`: it needs measures of the pixels; `mixed`: in one condition with metadata.
    """

    key: str | None = None
    judge: Callable[[Image], tuple[bool, bool]] = field(default=lambda _: (False, True), repr=False)
    measured: bool = False
    mixed: bool = False

    def can_judge(self, key: str | None) -> bool:
        """Whether it can be judged by rows of a run with this filter."""
        return not self.measured or (key == self.key and not self.mixed)


@dataclass(frozen=True, kw_only=True)
class Job:
    """The settings of a job. `hash_of` reads a file, as `content_hashes` does."""

    source: str
    model: str
    keep: Keep
    exif: bool
    missing: Literal["keep", "delete"]
    verify_hash: bool
    postponed: frozenset[str]
    hash_of: Callable[[str | None], str | None] = field(repr=False)
