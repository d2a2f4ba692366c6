"""Sources for tests: folders from a table of names and contents, and the files that hold several pictures."""

import io
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

PICTURE = b"picture"


def write_files(folder: Path, files: Mapping[str, bytes | str] | Iterable[str]) -> Path:
    """Write these files below the folder; those without content hold `PICTURE`."""
    for name, content in (files if isinstance(files, Mapping) else dict.fromkeys(files, PICTURE)).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def tar_of(*members: str, mode: str = "w", **contents: bytes) -> bytes:
    """A tar of these members, which hold `PICTURE`; a name in `contents` has `__` for its dot."""
    target = io.BytesIO()
    named = {**dict.fromkeys(members, PICTURE), **{name.replace("__", "."): data for name, data in contents.items()}}
    with tarfile.open(fileobj=target, mode=mode) as tar:  # type: ignore[call-overload]  # the mode is a variable
        for name, data in named.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return target.getvalue()


def parquet_of(**columns: Any) -> bytes:
    target = io.BytesIO()
    pq.write_table(pa.table(columns), target)
    return target.getvalue()
