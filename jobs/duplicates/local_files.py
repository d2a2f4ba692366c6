"""The files of images on this machine, and second paths of one file: links, and names of the same inode."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from embedder.errors import FetchError
from embedder.fetch.uris import local_path, scheme_of, split_fragment

Row = dict[str, Any]


def local_file(uri: str | None) -> Path | None:
    """The absolute path of a whole file on this machine, with its links; None for any other image."""
    try:
        if not uri or scheme_of(uri) != "file" or split_fragment(uri)[1] is not None:
            return None
        return Path(os.path.abspath(local_path(uri)))  # noqa: PTH100  # links stay as they are
    except (FetchError, ValueError):
        return None


def one_path_each(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """The rows with one path for each file, rather not one through a link, and those with a second path of a file."""
    firsts, others = dict[Any, Row](), list[Row]()
    for row in sorted(rows, key=_is_through_link):
        file = _inode(row) or row["image_id"]
        if firsts.setdefault(file, row) is not row:
            others.append(row)
    return list(firsts.values()), others


def _is_through_link(row: Mapping[str, Any]) -> bool:
    path = local_file(row["uri"])
    return path is not None and Path(os.path.realpath(path)) != path


def _inode(row: Mapping[str, Any]) -> tuple[int, int] | None:
    path = local_file(row["uri"])
    try:
        status = path.stat() if path else None
    except (OSError, ValueError):
        return None
    return (status.st_dev, status.st_ino) if status else None
