"""Which file name extensions count as pictures, and which as lists of pictures."""

from collections.abc import Sequence
from pathlib import PurePosixPath

IMAGE_EXTENSIONS = ("jpg", "jpeg", "jfif", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "mpo")
"""Taken as pictures unless `--extensions` names others."""

TABLE_EXTENSIONS = ("parquet", "csv", "tsv", "jsonl", "ndjson")

COMPANION_EXTENSIONS = frozenset(
    {*IMAGE_EXTENSIONS, *TABLE_EXTENSIONS, "txt", "md", "json", "xml", "xmp", "yaml", "yml", "html"}
    | {"ini", "db", "log", "aae"}
)
"""Nobody misses these where there are pictures; images are among them because --extensions may leave them out."""


def extension(path: str) -> str:
    """The last extension in lower case without its dot; empty where there is none."""
    return PurePosixPath(path).suffix.lower().lstrip(".")


def checked_extensions(extensions: Sequence[str]) -> tuple[str, ...]:
    """`jpg` and `png` of `jpg` and ` .PNG`."""
    known = tuple(part.strip().lower().lstrip(".") for part in extensions if part.strip())
    if not known:
        raise ValueError(f"is {','.join(extensions)!r}: expected extensions such as jpg,png")
    return known
