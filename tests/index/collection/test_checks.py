"""The log of checks of web addresses."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from index.collection import Collection
from index.collection.checks import CHECK_SCHEMA, write_checks
from tests.support.collections.rejects_and_checks import read_checks

_NOW = datetime(2026, 3, 1, tzinfo=UTC)


def write(collection: Collection, source: str, checks: dict[str, int], checked: datetime = _NOW) -> None:
    rows = [{"source": source, "uri": uri, "checked": checked, "gone": gone} for uri, gone in checks.items()]
    write_checks(collection, pa.Table.from_pylist(rows, CHECK_SCHEMA))


def gone(collection: Collection, source: str | None) -> dict[str, int]:
    rows = read_checks(collection, source).to_pylist()
    assert len(rows) == len({(row["source"], row["uri"]) for row in rows})
    return {row["uri"]: row["gone"] for row in rows}


def files(collection: Collection) -> list[Path]:
    return sorted(Path(collection.location, "checks").iterdir())


def test_the_newest_check_of_an_address_counts_for_its_source(collection: Collection) -> None:
    assert gone(collection, None) == {}
    write(collection, "one", {"a": 1, "b": 1})
    write(collection, "one", {"a": 2, "c": 1}, checked=_NOW - timedelta(days=1))  # the clock was set back
    write(collection, "two", {"a": 5})
    assert gone(collection, "one") == {"a": 2, "b": 1, "c": 1}
    assert gone(collection, "two") == {"a": 5}
    assert gone(collection, "three") == {}
    assert read_checks(collection).num_rows == 4
    assert Collection.open_or_empty(collection.location) == collection


def test_many_files_are_merged_whether_or_not_the_merged_ones_are_removed(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("index.collection.checks._MAX_FILES", 3)
    write(collection, "one", {"long ago": 1}, checked=_NOW - timedelta(days=800))
    expected = dict[str, int]()
    for number in range(8):
        before = {path: path.read_bytes() for path in files(collection)}
        write(collection, "one", found := {"a": number, f"{number}": 0})
        expected |= found
        assert len(files(collection)) <= 5
        if number == 2:  # it was killed before it removed them
            for path, data in before.items():
                path.write_bytes(data)
        assert gone(collection, "one") == expected | ({"long ago": 1} if number <= 2 else {})


def test_a_damaged_file_is_ignored(collection: Collection) -> None:
    write(collection, "one", {"a": 1})
    write(collection, "one", {"a": 2})
    newest = files(collection)[-1]
    newest.write_bytes(newest.read_bytes()[:-9])
    (newest.parent / "00000009.0123456789abcdef.parquet").write_bytes(b"no table")
    (newest.parent / "notes.txt").write_text("not a check")
    assert gone(collection, "one") == {"a": 1}
