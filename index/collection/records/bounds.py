"""What the values of a collection's records may be. Anyone may have written them, so each has a pattern or limits:
names become paths, numbers memory.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, Final

from pydantic import AfterValidator, AwareDatetime, Field, StringConstraints
from pydantic_core import from_json

from index.collection.layout import VERSION
from index.tiles import checked_tiles

MAX_RECORD: Final = 64 << 20
"""Maximum bytes of a record: the manifest of a run with 300,000 files has as many."""

_MAX_VALUES: Final = 4_000_000  # of a record, each of which takes up to a hundred bytes of memory
_MAX_SECONDS: Final = 1e12
MAX_YEAR: Final = 9000
"""Times are before it, so that every time zone has them."""

VersionName = Annotated[str, StringConstraints(pattern=rf"^{VERSION}$")]
SegmentName = Annotated[str, StringConstraints(pattern=rf"^{VERSION}-[0-9]{{2,6}}(-[0-9]{{1,3}})?$")]
"""The version whose build made it, its number in that build, and from the second attempt on the attempt."""
RunId = Annotated[str, StringConstraints(pattern=r"^[0-9]{8}T[0-9]{6}Z-[0-9a-f]{4,16}$")]
EntryId = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z-]{1,64}$")]
"""Of a job in the history."""
RowFilePath = Annotated[
    str,
    StringConstraints(
        pattern=r"^(runs/[0-9]{8}T[0-9]{6}Z-[0-9a-f]{4,16}/((rows|facts)/[A-Za-z0-9_-]{1,100}|files)"
        r"|merged/[0-9]{8}/facts/[0-9]{4,8}|checks/[0-9]{1,12}(-merged)?)"
        r"\.[0-9a-f]{16,64}\.parquet$"
    ),
]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, StringConstraints(max_length=10_000)]

Count = Annotated[int, Field(ge=0, le=1 << 50)]
"""Rows, or bytes."""
Pid = Annotated[int, Field(ge=1, le=(1 << 31) - 1)]
"""Of a process; others would stand for groups of processes."""
Share = Annotated[float, Field(ge=0, le=1)]
Dim = Annotated[int, Field(ge=0, le=1 << 16)]
Seconds = Annotated[float, Field(ge=0, le=_MAX_SECONDS)]
Width = Annotated[float, Field(ge=1, le=64)]
"""How many times as wide as with an image a search is; the builds try up to 64."""

Time = Annotated[AwareDatetime, Field(ge=datetime(1000, 1, 1, tzinfo=UTC), le=datetime(MAX_YEAR, 1, 1, tzinfo=UTC))]
Tiles = Annotated[str, AfterValidator(checked_tiles)]

PARAMETERS: Final = {
    "nprobe": (1.0, 1e7),
    "efSearch": (1.0, 1e7),
    "k_factor": (1.0, 1024.0),
    "rescore": (1.0, 1024.0),
    "breadth": (0.0, 4.0),
    "crowd": (-1.01, 1.01),
}
"""The least and the greatest value of each search parameter; what tuning tries is well within."""


def _checked_parameters(parameters: dict[str, float]) -> dict[str, float]:
    for name, value in parameters.items():
        low, high = PARAMETERS.get(name, (0.0, -1.0))
        if not low <= value <= high:
            expected = f"{low:g} to {high:g}" if name in PARAMETERS else f"one of {', '.join(PARAMETERS)}"
            raise ValueError(f"search parameter {name[:40]!r} is {value:g}: expected {expected}")
    return parameters


Parameters = Annotated[dict[str, float], AfterValidator(_checked_parameters)]


def keys(*allowed: str, required: tuple[str, ...] = ()) -> AfterValidator:
    """For a dict with some of the `allowed` keys, and all `required` ones."""

    def check(values: dict[str, Any]) -> dict[str, Any]:
        if unknown := values.keys() - allowed:
            raise ValueError(f"has {sorted(unknown)[0][:40]!r}: expected some of {', '.join(allowed)}")
        if missing := set(required) - values.keys():
            raise ValueError(f"lacks {', '.join(sorted(missing))}")
        return values

    return AfterValidator(check)


def parse_json(data: bytes) -> object:
    """The value of a JSON text. ValueError if it is too large, nested too deeply, or has NaN or half a character."""
    if len(data) > MAX_RECORD or sum(map(data.count, (b",", b"[", b"{"))) > _MAX_VALUES:
        raise ValueError(f"it is longer than {MAX_RECORD:,} bytes, or has more than {_MAX_VALUES:,} values")
    return from_json(data, allow_inf_nan=False)
