"""Which file name extensions count as pictures, and which as lists of pictures."""

from collections.abc import Sequence

from embedder.images.formats import IMAGE_EXTENSIONS

VIDEO_EXTENSIONS = ("mp4", "m4v", "mov", "mkv", "webm", "avi", "mpg", "mpeg", "3gp")
"""Videos, whose frames are embedded only if `--extensions` names them: listing frames takes long."""

_GROUPS = {"images": IMAGE_EXTENSIONS, "videos": VIDEO_EXTENSIONS}

TABLE_EXTENSIONS = ("parquet", "csv", "tsv", "jsonl", "ndjson")

COMPANION_EXTENSIONS = frozenset(
    {*IMAGE_EXTENSIONS, *TABLE_EXTENSIONS, "txt", "md", "json", "xml", "xmp", "yaml", "yml", "html"}
    | {"ini", "db", "log", "aae"}
)
"""Files often found next to pictures, left out without a warning; images too, as `--extensions` may exclude them."""


def checked_extensions(extensions: Sequence[str]) -> tuple[str, ...]:
    """`jpg` and `png` for `jpg` and ` .PNG`; `images` and `videos` stand for all of a kind. ValueError if empty."""
    names = (part.strip().lower().lstrip(".") for part in extensions if part.strip())
    checked = tuple(dict.fromkeys(extension for name in names for extension in _GROUPS.get(name, (name,))))
    if not checked:
        raise ValueError(f"is {','.join(extensions)!r}: expected extensions such as jpg,png")
    return checked
