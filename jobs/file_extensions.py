"""Which file name extensions count as pictures, and which as lists of pictures."""

from collections.abc import Sequence

from embedder.images.formats import IMAGE_EXTENSIONS

VIDEO_EXTENSIONS = ("mp4", "m4v", "mov", "mkv", "webm", "avi", "mpg", "mpeg", "3gp")
"""Their frames are taken if `--extensions` names them: to find those takes long."""

_GROUPS = {"images": IMAGE_EXTENSIONS, "videos": VIDEO_EXTENSIONS}

TABLE_EXTENSIONS = ("parquet", "csv", "tsv", "jsonl", "ndjson")

COMPANION_EXTENSIONS = frozenset(
    {*IMAGE_EXTENSIONS, *TABLE_EXTENSIONS, "txt", "md", "json", "xml", "xmp", "yaml", "yml", "html"}
    | {"ini", "db", "log", "aae"}
)
"""Nobody misses these where there are pictures; images are among them because --extensions may leave them out."""


def checked_extensions(extensions: Sequence[str]) -> tuple[str, ...]:
    """`jpg` and `png` of `jpg` and ` .PNG`; `images` and `videos` stand for all of a kind."""
    names = (part.strip().lower().lstrip(".") for part in extensions if part.strip())
    known = tuple(dict.fromkeys(each for name in names for each in _GROUPS.get(name, (name,))))
    if not known:
        raise ValueError(f"is {','.join(extensions)!r}: expected extensions such as jpg,png")
    return known
