"""Which file name extensions count as pictures, and which as lists of pictures."""

from collections.abc import Sequence
from pathlib import PurePosixPath

from embedder.images.formats import IMAGE_EXTENSIONS

VIDEO_EXTENSIONS = ("mp4", "m4v", "mov", "mkv", "webm", "avi", "mpg", "mpeg", "3gp")
"""Videos, whose frames are embedded only if `--extensions` names them: listing frames takes long."""

_GROUPS = {"images": IMAGE_EXTENSIONS, "videos": VIDEO_EXTENSIONS}

TABLE_EXTENSIONS = ("parquet", "csv", "tsv", "jsonl", "ndjson")
"""The kinds of lists, which `sources.list_tables.TableReader` reads."""
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip")
PACKED_TARS = frozenset({*(f".tar{packed}" for packed in _PACKED), ".tgz", ".tbz", ".tbz2", ".txz", ".tzst"})
_PACKED_LISTS = frozenset(f".{kind}{packed}" for kind in TABLE_EXTENSIONS for packed in _PACKED)

NO_EXTENSION = "no extension"
COMPANION_EXTENSIONS = frozenset(
    {*IMAGE_EXTENSIONS, *TABLE_EXTENSIONS, "txt", "md", "json", "xml", "xmp", "yaml", "yml", "html"}
    | {"ini", "db", "log", "aae"}
)
"""Files often found next to pictures, left out without a warning; images too, as `--extensions` may exclude them."""


def kind_of_other(name: str) -> str:
    """The kind of a file that is not read, as reports show it: `.psd`, `.tar.gz` or `no extension`."""
    suffixes = [suffix.lower() for suffix in PurePosixPath(name).suffixes[-2:]]
    both = "".join(suffixes)
    return both if is_packed(both) else suffixes[-1] if suffixes else NO_EXTENSION


def is_packed(kind: str) -> bool:
    """Whether files of such a kind are compressed tars or lists. Pictures in them cannot be read one by one."""
    return kind in PACKED_TARS or kind in _PACKED_LISTS


def may_be_pictures(kind: str) -> bool:
    """Whether files of such a kind may be pictures in formats that are not read."""
    return kind == NO_EXTENSION or (kind.startswith(".") and kind[1:] not in COMPANION_EXTENSIONS)


def checked_extensions(extensions: Sequence[str]) -> tuple[str, ...]:
    """`jpg` and `png` for `jpg` and ` .PNG`; `images` and `videos` stand for all of a kind. ValueError if empty."""
    names = (part.strip().lower().lstrip(".") for part in extensions if part.strip())
    checked = tuple(dict.fromkeys(extension for name in names for extension in _GROUPS.get(name, (name,))))
    if not checked:
        raise ValueError(f"is {','.join(extensions)!r}: expected extensions such as jpg,png")
    return checked
