"""Values of lists: what stays text, what becomes numbers, dates or times, and types that are given."""

import csv
import datetime as dt
import io
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.errors import SourceError
from jobs.values import ColumnType
from tests.support.listings import ids, list_images, metadata, parquet, put, refused

UTC = dt.UTC


def csv_of(**columns: Sequence[str]) -> bytes:
    """A CSV with these columns, and as many pictures."""
    text = io.StringIO()
    rows = list(zip(*columns.values(), strict=True))
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows(
        [["uri", *columns], *([f"{number}.jpg", *row] for number, row in enumerate(rows))]
    )
    return text.getvalue().encode()


def typed(values: Sequence[Any]) -> list[tuple[str, Any]]:
    """The values with their types: 1 is not 1.0."""
    return [(type(value).__name__, value) for value in values]


def listed(folder: Path, texts: Sequence[str]) -> list[Any]:
    """The values that a column of a CSV has in the listing."""
    return list(list_images(str(put(folder / "list.csv", csv_of(v=texts))))["v"].to_pylist())


CODES = [
    ["0012345678905", "4006381333931"],  # EAN
    ["01067", "80331"],  # German postcodes
    ["00000", "1"], ["1e5", "2e5"], ["1E5", "7"], ["12e34567", "1"], ["1.10", "1.9"],  # versions
    ["1.10", "NA"], ["3.0", "3"], ["2.50", "10.00"], ["+4930123456", "+4989987654"], ["+5", "6"],
    ["0x1F", "0x20"], ["0b101", "0o17"], ["12345678901234567890", "12345678901234567891"],
    ["9223372036854775808", "1"], ["-9223372036854775809", "1"], ["9007199254740993", "0.5"],
    ["0.1234567890123456789", "0.5"], ["-00", "1"], [".5", "1.5"], ["5.", "1.5"], [" 5", "6"], ["5\t", "6"],
    ["5\n", "6"], ["1,5", "2,5"], ["1.000,50", "2"], ["1_000", "2"], ["1 000", "2"], ["٣", "4"],
    ["\uff11\uff12", "4"],  # full width
    ["\u22125", "4"],  # a typographic minus
    ["½", "1"], ["inf", "1"], ["-Infinity", "1"], ["1e999", "1"], ["978-3-16-148410-0", "1"], ["2-8", "3-9"],
    ["1/2", "3"], ["50%", "60%"], ["$5", "$6"], ["true", "False"], ["TRUE", "1"], ["yes", "no"], ["T", "F"],
    ["2024-1-2", "2024-01-03"], ["2024-02-30", "2024-01-03"], ["20240102", "02"], ["0000-00-00", "2024-01-03"],
    ["0001-01-01", "2024-01-03"], ["01/02/2024", "03/02/2024"], ["2024-01-02", "2024-01-02 10:00:00"],
    ["2024-01-02T10:00:00", "2024-01-02 10:00:00"], ["2024-01-02T10:00:00Z", "2024-01-02T10:00:00"],
    ["2024-01-02T10:00:00.5", "2024-01-02T10:00:00.50"],
    ["2024-01-02T10:00:00+02:00", "2024-01-02T10:00:00+00:00"],
    ["2024-01-02T10:00:00.123456789", "2024-01-02T10:00:00.123456780"],
    ["2024-01-02T25:00:00", "2024-01-02T10:00:00"], ["10:30", "16:09"], ["NA", "DE"],  # Namibia
    ["NA", "NA"], ["NA", ""], ["NA", "null", "5"], ["None", "nan", "Null"], ["5", "", "NA"], ["1.5", "x"],
]  # fmt: skip


def test_codes_keep_their_text(tmp_path: Path) -> None:
    for count in (2, 3):
        columns = {f"v{number}": texts for number, texts in enumerate(CODES) if len(texts) == count}
        assert metadata(list_images(str(put(tmp_path / "list.csv", csv_of(**columns))))) == columns
    assert {*map(len, CODES)} == {2, 3}


TYPED: list[tuple[list[str], list[Any]]] = [
    (["1", "-2", "0"], [1, -2, 0]),
    (["9223372036854775807", "-9223372036854775808"], [2**63 - 1, -(2**63)]),
    (["4", "4.5", "5"], [4.0, 4.5, 5.0]),  # as Excel writes ratings
    (["4.0", "4.5", "5.0"], [4.0, 4.5, 5.0]),  # as pandas does
    (["1e-07", "0.25", "2.5e+20"], [1e-07, 0.25, 2.5e20]),
    (["0.1", "-0.30000000000000004"], [0.1, -0.30000000000000004]),
    (["5", "", "6"], [5, None, 6]),
    (["5.5", "NA", "6.5"], [5.5, None, 6.5]),  # as R writes
    (["N/A", "6"], [None, 6]),
    (["true", "false", ""], [True, False, None]),
    (["True", "False"], [True, False]),
    (["TRUE", "TRUE"], [True, True]),
    (["2024-01-02", "2024-02-29", ""], [dt.date(2024, 1, 2), dt.date(2024, 2, 29), None]),
    (["2024-01-02 10:20:30"], [dt.datetime(2024, 1, 2, 10, 20, 30)]),
    (["2024-01-02T10:20"], [dt.datetime(2024, 1, 2, 10, 20)]),
    (["2024-01-02T10:20:30.125Z"], [dt.datetime(2024, 1, 2, 10, 20, 30, 125000, UTC)]),
    (["", ""], [None, None]),
]  # fmt: skip


def test_columns_that_can_be_written_back_get_a_type(tmp_path: Path) -> None:
    for count in (1, 2, 3):
        columns = {f"v{number}": each for number, each in enumerate(TYPED) if len(each[0]) == count}
        data = csv_of(**{name: texts for name, (texts, _) in columns.items()})
        found = metadata(list_images(str(put(tmp_path / "list.csv", data))))
        assert {name: typed(values) for name, values in found.items()} == {
            name: typed(values) for name, (_, values) in columns.items()
        }
    assert {len(texts) for texts, _ in TYPED} == {1, 2, 3}


def _written(value: Any, like: str) -> set[str]:
    """How a program might write a value that the list has as `like`."""
    if value is None:
        return {like}
    if isinstance(value, bool):
        return {str(value), str(value).lower(), str(value).upper()}
    if isinstance(value, float):
        return {repr(value), pa.scalar(value).cast(pa.string()).as_py()}
    if isinstance(value, dt.datetime):
        text, zone = value.replace(tzinfo=None).isoformat(like[10], "microseconds"), "Z" if value.tzinfo else ""
        return {text[:end] + zone for end in range(16, 27) if not text[end:].strip(":0.")}
    return {str(value)}


DIGITS = st.text("0123456789", min_size=1, max_size=20)
CELLS = st.one_of(
    DIGITS,
    st.integers().map(str),
    st.floats().map(repr),
    st.decimals().map(str),
    st.booleans().map(str),
    st.dates().map(str),
    st.datetimes().map(str),
    st.sampled_from(["", "NA", "null", "nan", "0x1F", "+1", "1e5", "1.10", "-0", "٣"]),
    st.from_regex(r"[+-]?[0-9]{1,3}([.,][0-9]{0,3})?([eE][+-]?[0-9]{1,2})?", fullmatch=True),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=5),
)


@settings(max_examples=settings().max_examples // 2)
@given(st.one_of(*(st.lists(cells, min_size=1, max_size=4) for cells in (CELLS, DIGITS, st.floats().map(repr), CELLS))))
def test_whatever_a_csv_says_can_be_written_back(texts: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        values = listed(Path(folder), texts)
    assert all(text in _written(value, text) for text, value in zip(texts, values, strict=True))
    missing = {text for text, value in zip(texts, values, strict=True) if value is None}
    assert len(missing) <= 1
    assert len({type(value) for value in values} - {type(None)}) <= 1


@settings(max_examples=settings().max_examples // 2)
@given(st.lists(st.one_of(st.integers(), st.integers(10**19, 10**21), st.integers(2**53, 2**64)), min_size=1))
def test_integers_of_json_keep_their_digits(numbers: list[int]) -> None:
    lines = [json.dumps({"uri": "a.jpg", "id": each, "n": each, "deep": {"n": [each, 0.5]}}) for each in numbers]
    with tempfile.TemporaryDirectory() as folder:
        listing = list_images(str(put(Path(folder) / "list.jsonl", "\n".join(dict.fromkeys(lines)).encode())))
    digits = list(dict.fromkeys(map(str, numbers)))
    assert [str(value) for value in listing["n"].to_pylist()] == digits
    assert ids(listing) == digits
    assert [json.loads(str(text))["n"][0] for text in listing["deep"].to_pylist()] == list(map(int, digits))


OF_JSON: list[tuple[str, list[Any]]] = [
    ("[12345678901234567890, 12345678901234567891]", ["12345678901234567890", "12345678901234567891"]),
    ("[9007199254740993, 0.5]", ["9007199254740993", "0.5"]),
    ("[1.10, 2.5]", [1.1, 2.5]),  # JSON says that these are numbers
    ("[1.10, \"x\"]", ["1.10", "x"]),
    ("[1e400, 1.5]", ["1e400", "1.5"]),
    ('["007", "8"]', ["007", "8"]),
    ('["5", "6"]', ["5", "6"]),  # and that these are not
    ('["true", "false"]', ["true", "false"]),
    ('["2024-01-02", "2024-01-03"]', [dt.date(2024, 1, 2), dt.date(2024, 1, 3)]),
    ('["2024-01-02", "soon"]', ["2024-01-02", "soon"]),
    ('["2024-01-02T10:00:00+02:00", "2024-01-02"]', ["2024-01-02T10:00:00+02:00", "2024-01-02"]),
    ('[{"day": "2024-01-02"}, {"day": "2024-01-03"}]', ['{"day": "2024-01-02"}', '{"day": "2024-01-03"}']),
    ("[[12345678901234567890], [1]]", [["12345678901234567890"], ["1"]]),
]  # fmt: skip


def test_values_of_json(tmp_path: Path) -> None:
    # Not by json.dumps, which would write 1.10 as 1.1.
    pairs = [values[1:-1].split(", ", 1) for values, _ in OF_JSON]
    lines = [", ".join(f'"v{number}": {pair[row]}' for number, pair in enumerate(pairs)) for row in (0, 1)]
    put(tmp_path / "list.jsonl", f'{{"uri": "a.jpg", {lines[0]}}}\n{{"uri": "b.jpg", {lines[1]}}}\n'.encode())
    found = metadata(list_images(str(tmp_path / "list.jsonl")))
    for number, (values, expected) in enumerate(OF_JSON):
        assert typed(found[f"v{number}"]) == typed(expected), values


def test_a_column_has_one_type_in_all_lists_of_a_source(tmp_path: Path) -> None:
    put(tmp_path / "a.csv", csv_of(version=["1.0", "2.0"], stars=["1", "2"], code=["5", "6"], day=["2024-01-02"] * 2))
    put(tmp_path / "b.csv", csv_of(version=["1.10"], stars=["3.5"], code=["007"], day=["2024-01-03"]))
    put(tmp_path / "c.jsonl", b'{"uri": "c.jpg", "stars": 4, "code": "8", "day": "2024-01-04"}')
    listing = list_images(str(tmp_path))
    assert metadata(listing) == {
        "version": ["1.0", "2.0", "1.10", None],
        "stars": [1.0, 2.0, 3.5, 4.0],
        "code": ["5", "6", "007", "8"],
        "day": [dt.date(2024, 1, 2), dt.date(2024, 1, 2), dt.date(2024, 1, 3), dt.date(2024, 1, 4)],
    }
    assert all(not field.metadata for field in listing.schema)


GIVEN: list[tuple[ColumnType, list[str], list[Any]]] = [
    ("text", ["5", "6"], ["5", "6"]),
    ("integer", ["007", "+5", "3.0", "NA", ""], [7, 5, 3, None, None]),
    ("number", ["1.10", "2e3", ".5", " 7 ", "N/A"], [1.1, 2000.0, 0.5, 7.0, None]),
    ("boolean", ["yes", "0", "TRUE", ""], [True, False, True, None]),
    ("date", ["2024-01-02", "20240103", ""], [dt.date(2024, 1, 2), dt.date(2024, 1, 3), None]),
    (
        "time",
        ["2024-01-02T10:00:00+02:00", "2024-01-02"],
        [dt.datetime(2024, 1, 2, 8, tzinfo=UTC), dt.datetime(2024, 1, 2, tzinfo=UTC)],
    ),
]


@pytest.mark.parametrize(("kind", "texts", "values"), GIVEN)
def test_types_can_be_given(tmp_path: Path, kind: ColumnType, texts: list[str], values: list[Any]) -> None:
    types: dict[str, ColumnType] = {"v": kind}
    rows = "\n".join(json.dumps({"uri": f"{number}.jpg", "v": text}) for number, text in enumerate(texts))
    contents = {"csv": csv_of(v=texts), "jsonl": rows.encode()}
    contents["parquet"] = parquet(uri=[f"{number}.jpg" for number in range(len(texts))], v=texts)
    for name, content in contents.items():
        listing = list_images(str(put(tmp_path / f"list.{name}", content)), column_types=types)
        assert typed(listing["v"].to_pylist()) == typed(values)
        assert refused(listing) == {}


def test_numbers_of_json_can_be_given_as_text(tmp_path: Path) -> None:
    put(tmp_path / "list.jsonl", b'{"uri": "a.jpg", "v": 1.10}\n{"uri": "b.jpg", "v": 1.1}')
    listing = list_images(str(tmp_path / "list.jsonl"), column_types={"v": "text"})
    assert listing["v"].to_pylist() == ["1.10", "1.1"]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("integer", "1.5"), ("integer", "1_000"), ("integer", "9223372036854775808"), ("integer", "٣"),
        ("number", "free"), ("number", "1,5"), ("number", "0x1F"), ("number", "1e999"),
        ("boolean", "maybe"), ("date", "2024-02-30"), ("time", "soon"),
    ],
)  # fmt: skip
def test_a_value_of_another_type_rejects_its_row(tmp_path: Path, kind: ColumnType, text: str) -> None:
    good = next(texts[0] for name, texts, _ in GIVEN if name == kind)
    location = str(put(tmp_path / "list.csv", csv_of(id=["one", "two"], v=[good, text])))
    listing = list_images(location, column_types={"v": kind})
    message = f"expected {kind} in column `v`, as --column-types says, got {text!r}"
    assert refused(listing) == {"two": ("bad_value", message)}
    assert (ids(listing), listing["v"][1].as_py()) == (["one", "two"], None)


def test_a_type_for_a_column_that_no_list_has_is_refused(tmp_path: Path) -> None:
    location = str(put(tmp_path / "list.csv", csv_of(ean=["1"])))
    with pytest.raises(SourceError, match=r"--column-types names sku: expected columns of the lists .*: ean$"):
        list_images(location, column_types={"sku": "text"})


def test_the_type_of_a_reserved_name_is_given_by_the_lists_name(tmp_path: Path) -> None:
    notes: dict[str, list[str]] = {}
    columns = {
        **{"size": ["1", "2"], "score": ["a", "b"], "$price": ["c", "d"], "-width": ["e", "f"]},
        "image_id": ["g", "h"],
    }
    location = str(put(tmp_path / "list.csv", csv_of(**columns)))
    listing = list_images(location, column_types={"size": "text"}, notes=notes)
    assert metadata(listing) == {f"source_{name}": values for name, values in columns.items()}
    assert list(notes) == [
        "column `size` is stored as `source_size`, as each image has a `size` of its own",
        "column `score` is stored as `source_score`, as each image has a `score` of its own",
        "column `$price` is stored as `source_$price`, as searches read $ at the beginning of a name as a sign",
        "column `-width` is stored as `source_-width`, as searches read - at the beginning of a name as a sign",
        "column `image_id` is stored as `source_image_id`, as each image has an id of its own: to use these ids, add "
        "--id-column image_id",
    ]
