"""The same list as spreadsheets, pandas, databases and people write it."""

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.listings import ids, list_images, metadata, put, refused, uris

NAMES = [f"img/p{number}.png" for number in range(6)]
X = [f"x{number}" for number in range(6)]


def table(header: str, row: str, end: str = "\n", before: str = "") -> str:
    """A header, and a row for each picture in which {u} is the address, {i} its number and {n} the next number."""
    lines = [header, *(row.format(u=uri, i=number, n=number + 1) for number, uri in enumerate(NAMES))]
    return before + "".join(line + end for line in lines)


def objects(**values: list[Any]) -> list[dict[str, Any]]:
    return [{"uri": uri, **{name: column[row] for name, column in values.items()}} for row, uri in enumerate(NAMES)]


NUMBERS = objects(label=list(range(6)))
DIALECTS: dict[str, tuple[str | bytes, dict[str, list[Any]]]] = {
    "zeros.csv": (table("uri,ean,zip", "{u},000{i}12345678{i},0{i}234"), {
        "ean": [f"000{i}12345678{i}" for i in range(6)], "zip": [f"0{i}234" for i in range(6)],
    }),
    "large.csv": (table("uri,n", "{u},1234567890123456789{i}"), {"n": [f"1234567890123456789{i}" for i in range(6)]}),
    "pandas.csv": (table(",uri,label", "{i},{u},x{i}"), {"": list(range(6)), "label": X}),
    "long.csv": (table("uri,text", "{u}," + 2_500_000 * "x"), {"text": [2_500_000 * "x"] * 6}),
    "mark.csv": (table("uri,label", "{u},x{i}").encode("utf-8-sig"), {"label": X}),
    "excel.csv": (table("uri\tlabel", "{u}\tx{i}", "\r\n").encode("utf-16"), {"label": X}),
    "windows.csv": (table("uri,Größe", "{u},Müller", "\r\n").encode("cp1252"), {"Größe": ["Müller"] * 6}),
    "blank.csv": (table("uri,label", "{u},x{i}", "\r\n") + "\r\n\r\n", {"label": X}),
    "spaced.csv": (table("uri, label", "{u}, x{i}"), {" label": [f" {x}" for x in X]}),
    "pipe.csv": (table("uri|label", "{u}|x{i}"), {"label": X}),
    "semicolons.csv": (table("uri;label", "{u};x{i}"), {"label": X}),
    "mark and semicolons.csv": (table("uri;label", "{u};x{i}", "\r\n").encode("utf-8-sig"), {"label": X}),
    "quoted.csv": (table('"uri";"label"', '"{u}";"x{i}"'), {"label": X}),
    "tabs.csv": (table("uri\tlabel", "{u}\tx{i}"), {"label": X}),
    "tabs.tsv": (table("uri\tlabel", "{u}\tx{i}"), {"label": X}),
    "sep.csv": (table("uri;label", "{u};x{i}", "\r\n", "sep=;\r\n"), {"label": X}),
    "quoted sep.csv": (table("uri;label", "{u};x{i}", before='"sep=;"\n'), {"label": X}),
    "sep tab.csv": (table("uri\tlabel", "{u}\tx{i}", before="sep=\t\n"), {"label": X}),
    "sep hash.csv": (table("uri#label", "{u}#x{i}", before="sep=#\n"), {"label": X}),
    "sep.tsv": (table("uri,label", "{u},x{i}", "\r\n", "sep=,\r\n").encode("utf-16"), {"label": X}),
    "dates.csv": (table("uri,taken,at,day", "{u},0{n}/02/2024,2024-03-0{n}T10:00:00+02:00,2024-01-0{n}"), {
        "taken": [f"0{i}/02/2024" for i in range(1, 7)],
        "at": [f"2024-03-0{i}T10:00:00+02:00" for i in range(1, 7)],
        "day": [dt.date(2024, 1, i) for i in range(1, 7)],
    }),
    "mixed.csv": ("uri,price,flag\n" + "".join(
        f"{uri},{'N/A' if i == 3 else i + 0.5},{'true' if i % 2 else 'false'}\n" for i, uri in enumerate(NAMES)
    ), {"price": [0.5, 1.5, 2.5, None, 4.5, 5.5], "flag": [False, True] * 3}),
    "trailing.csv": (table("uri,label,", "{u},x{i},"), {"label": X, "": [None] * 6}),
    "array.jsonl": (json.dumps(NUMBERS), {"label": list(range(6))}),
    "pretty array.jsonl": (json.dumps(NUMBERS, indent=1), {"label": list(range(6))}),
    "pretty.jsonl": ("\n".join(json.dumps(each, indent=2) for each in NUMBERS), {"label": list(range(6))}),
    "glued.ndjson": ("".join(map(json.dumps, NUMBERS)), {"label": list(range(6))}),
    "commas.jsonl": (",\r\n".join(map(json.dumps, NUMBERS)) + ",\r\n", {"label": list(range(6))}),
    "mark.jsonl": ("\ufeff" + "\r\n".join(map(json.dumps, NUMBERS)), {"label": list(range(6))}),
    "wide.jsonl": ("\n".join(map(json.dumps, NUMBERS)).encode("utf-16"), {"label": list(range(6))}),
    "twice.jsonl": (table("", '{{"uri": "{u}", "label": "a", "label": "x{i}"}}'), {"label": X}),
    "large.jsonl": ("\n".join(map(json.dumps, objects(big=[2**60 + i for i in range(6)]))), {
        "big": [2**60 + i for i in range(6)],
    }),
    "mixed.jsonl": ("\n".join(map(json.dumps, objects(v=[0, "s1", 2.5, None, True, [5]]))), {
        "v": [["0"], ["s1"], ["2.5"], None, ["true"], ["5"]],
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", DIALECTS)
def test_every_dialect_lists_the_same_pictures(tmp_path: Path, name: str) -> None:
    content, expected = DIALECTS[name]
    listing = list_images(str(put(tmp_path / name, content if isinstance(content, bytes) else content.encode())))
    assert uris(listing) == [f"{tmp_path}/{uri}" for uri in NAMES]
    assert metadata(listing) == expected
    assert refused(listing) == {}


@pytest.mark.parametrize("before", ["", "sep=;\n"])
def test_lines_are_counted_from_the_start_of_the_file(tmp_path: Path, before: str) -> None:
    put(tmp_path / "list.csv", f"{before}uri;id\na.jpg;1\nb.jpg\n".encode())
    assert ids(list_images(str(tmp_path / "list.csv")))[1:] == [f"list.csv#line={4 if before else 3}"]


def test_a_bad_object_among_objects_that_span_lines_rejects_only_itself(tmp_path: Path) -> None:
    text = '{\n "uri": "a.jpg"\n}\n{"uri" "b.jpg"}\n7\n{\n "uri":\n  "c.jpg"\n}\n"text"\n'
    listing = list_images(str(put(tmp_path / "list.jsonl", text.encode())))
    assert uris(listing)[:2] == [f"{tmp_path}/a.jpg", f"{tmp_path}/c.jpg"]
    assert ids(listing)[2:] == [f"list.jsonl#line={line}" for line in (4, 5, 10)]
