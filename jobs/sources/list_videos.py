"""Lists the frames of videos that show something new, with their time in the id."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from embedder.errors import FetchError, Rejected
from embedder.fetch import Fetcher
from embedder.fetch.uris import FRAME_MARK
from embedder.machine import usable_cpus
from index.storage.picture_reader import PictureReader
from jobs.errors import SourceError
from jobs.sources.files import SourceFile, file_listing
from jobs.sources.listing import LISTING, UNREADABLE, Listed, Refused

Frames: TypeAlias = Mapping[str, Sequence[Mapping[str, Any]]]
ListedFrames: TypeAlias = Callable[[], Frames]
"""Returns the rows of known frames, with `uri`, `size`, `modified` and `etag`, by the uri of their video."""


def frames_of(rows: pa.Table) -> Frames:
    """The rows that are frames of videos, by the uri of their video."""
    found: dict[str, list[dict[str, Any]]] = {}
    rows = rows.filter(pc.match_substring_regex(rows["uri"], rf"{FRAME_MARK}[0-9.]+$"))
    for row in rows.to_pylist():
        found.setdefault(row["uri"].rpartition(FRAME_MARK)[0], []).append(row)
    return found


def shown_time(seconds: float) -> str:
    """A time in the name of a frame."""
    return f"{seconds:.6f}".rstrip("0").rstrip(".")


def list_videos(files: Sequence[SourceFile], listed_frames: ListedFrames) -> Listed:
    """The frames of videos, and the videos that are refused. An unchanged video keeps its known frames."""
    if not files:
        return Listed(images=LISTING.empty_table())
    if find_spec("av") is None:
        raise SourceError(f"{files[0].uri} is a video: install likeness[video] to take its frames")
    list_one = partial(_list_video, Fetcher(buckets=PictureReader()), listed_frames())
    with ThreadPoolExecutor(usable_cpus()) as pool:
        found = list(pool.map(list_one, files))
    tables = [each for each in found if isinstance(each, pa.Table)]
    refused = [each for each in found if isinstance(each, Refused)]
    return Listed(images=pa.concat_tables([file_listing([]), *tables]), refused=refused)


def _list_video(fetcher: Fetcher, known: Frames, file: SourceFile) -> pa.Table | Refused:
    # Those that only a list names have no time of modification.
    rows = [row for row in known.get(file.uri, []) if row["modified"] or not file.modified]
    if rows and all(_is_unchanged(row, file) for row in rows):
        return _frames(file, sorted({row["uri"].rpartition(FRAME_MARK)[2] for row in rows}, key=float))
    try:
        return _frames(file, [shown_time(round(time, 3)) for time in fetcher.frame_times(file.uri)])
    except Rejected as error:
        # If the video may be readable later, its frames are unknown rather than gone.
        reason = UNREADABLE if error.retryable or isinstance(error, FetchError) else error.reason
        return file.refused(reason, error.message)


def _is_unchanged(row: Mapping[str, Any], file: SourceFile) -> bool:
    names = ("size", "etag") if file.etag else ("size", "modified", "etag")
    return all(row[name] == getattr(file, name) for name in names)


def _frames(file: SourceFile, times: Sequence[str]) -> pa.Table:
    return file_listing(
        [replace(file, name=f"{file.name}{FRAME_MARK}{t}", uri=f"{file.uri}{FRAME_MARK}{t}") for t in times]
    )
