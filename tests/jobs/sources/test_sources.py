"""Sources: listings of folders, lists, Parquet files, tars and buckets, and messages about bad ones."""

import datetime as dt
import hashlib
import io
import os
import tarfile
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset
from obstore.store import S3Store

from embedder.errors import FetchError
from index.collection.rows import FIXED_COLUMNS, JSON
from jobs.errors import SourceError
from jobs.sources.list_images import left_out_warning
from tests.support.collections.s3_server import Bucket, FaultyServer
from tests.support.listings import (
    fetched,
    ids,
    list_images,
    metadata,
    parquet,
    put,
    refused,
    uris,
    write_files,
    write_list,
)

# Folders


def test_a_folder_is_listed_by_name_with_its_folders_as_labels(tmp_path: Path) -> None:
    ignored = ("notes.txt", ".hidden.jpg", ".cache/x.jpg", "b/._two.jpg")
    write_files(tmp_path, ["b/two.jpg", "b/deep down/three#1.webp", "a/one.jpeg", *ignored])
    put(tmp_path / "top.PNG", b"12345")
    os.utime(tmp_path / "top.PNG", (1_700_000_000, 1_700_000_000))
    listing = list_images(str(tmp_path))
    assert ids(listing) == ["a/one.jpeg", "b/deep down/three#1.webp", "b/two.jpg", "top.PNG"]
    assert uris(listing) == [f"{tmp_path}/{name}" for name in ids(listing)]
    assert metadata(listing) == {"label": ["a", "deep down", "b", None], "folder": ["a", "b/deep down", "b", None]}
    assert listing["size"].to_pylist() == [7, 7, 7, 5]
    assert listing["modified"][3].as_py() == dt.datetime.fromtimestamp(1_700_000_000, dt.UTC)
    assert fetched(listing)[3] == b"12345"
    assert list_images(f"{tmp_path}/") == listing
    assert list_images(f"file://{tmp_path}") == listing


def test_one_picture_is_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "only.jpg")
    monkeypatch.chdir(tmp_path)
    for location in (f"{tmp_path}/only.jpg", "only.jpg"):
        listing = list_images(location)
        assert (ids(listing), uris(listing)) == (["only.jpg"], [f"{tmp_path}/only.jpg"])


def test_extensions_select_files(tmp_path: Path) -> None:
    write_files(tmp_path, ["a.jpg", "b.png", "c.heic"])
    assert ids(list_images(str(tmp_path), extensions=("png", "heic"))) == ["b.png", "c.heic"]
    with pytest.raises(SourceError, match=r"has 3 files, but nothing .* images \(bmp\).* got \.heic, \.jpg, \.png"):
        list_images(str(tmp_path), extensions=("bmp",))


def test_files_of_other_kinds_are_named_in_a_warning() -> None:
    companions = dict.fromkeys((".txt", ".json", ".xmp", "hidden", ".db", "in @eaDir"), 5)
    assert left_out_warning(Counter(companions)) is None
    assert str(left_out_warning(Counter({".psd": 2, ".x3f": 1, "no extension": 1, **companions}))).startswith(
        "4 files of other kinds are left out: 2 .psd, 1 .x3f, 1 no extension. Convert any pictures"
    )
    many = Counter({f".kind{n}": 10 - n for n in range(9)})
    assert ", 3 .kind7, …. Convert" in str(left_out_warning(many))


def test_links_are_followed_but_not_in_circles_and_each_path_is_an_image(tmp_path: Path) -> None:
    write_files(tmp_path, ["elsewhere/far.jpg", "source/a.jpg"])
    for name, target in {"linked": "elsewhere", "again": "elsewhere", "self": "source"}.items():
        (tmp_path / "source" / name).symlink_to(tmp_path / target)
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "source")
    (tmp_path / "source" / "b.jpg").symlink_to("a.jpg")
    (tmp_path / "source" / "hard.jpg").hardlink_to(tmp_path / "source" / "a.jpg")
    expected = ["a.jpg", "again/far.jpg", "b.jpg", "hard.jpg", "linked/far.jpg"]
    assert ids(list_images(str(tmp_path / "source"))) == expected


def test_a_broken_link_is_listed_for_the_job_to_reject(tmp_path: Path) -> None:
    (tmp_path / "gone.jpg").symlink_to("/nowhere/at/all.jpg")
    (tmp_path / "knot.jpg").symlink_to("knot.jpg")
    put(tmp_path / "here.jpg")
    listing = list_images(str(tmp_path))
    assert ids(listing) == ["gone.jpg", "here.jpg", "knot.jpg"]
    assert listing["size"].to_pylist() == [None, 7, None]
    assert listing["modified"].is_null().to_pylist() == [True, False, True]


def test_any_file_name_can_be_fetched(tmp_path: Path) -> None:
    names = ["é ü.jpg", "100%25.jpg", "x?y&z.jpg", "a\nb.jpg", "part.tar#bytes=0-3.jpg", "x#row=1&column=y.jpg"]
    for name in names:
        put(tmp_path / name, name.encode())
    (tmp_path / os.fsdecode(b"latin-\xe9.jpg")).write_bytes(b"latin")
    put(tmp_path / "latin-\\udce9.jpg", b"its escape")
    listing = list_images(str(tmp_path))
    assert set(ids(listing)) == {*names, "latin-\\udce9.jpg", "latin-\\udce9.jpg#duplicate=2"}
    assert set(fetched(listing)) == {b"latin", b"its escape", *(name.encode() for name in names)}


# Lists


def write_csv(path: Path, text: str) -> str:
    return str(put(path, text.encode()))


def test_a_list_names_uris_ids_and_metadata(tmp_path: Path) -> None:
    text = 'url,id,caption,stars\nhttp://x.test/a.jpg,007,"two\nlines, one caption",3\nb.jpg,,plain,4\n/c.jpg,9,,5\n'
    listing = list_images(write_csv(tmp_path / "list.csv", text))
    assert ids(listing) == ["007", f"{tmp_path}/b.jpg", "9"]
    assert uris(listing) == ["http://x.test/a.jpg", f"{tmp_path}/b.jpg", "/c.jpg"]
    assert metadata(listing) == {"caption": ["two\nlines, one caption", "plain", ""], "stars": [3, 4, 5]}
    assert listing["size"].null_count == 3


def test_metadata_of_every_type_becomes_plain(tmp_path: Path) -> None:
    when = dt.datetime(2026, 11, 21, 3, 0, tzinfo=dt.UTC)
    key = uuid.UUID(int=7)
    columns: dict[str, tuple[Any, list[Any]]] = {  # values in the list, and in the listing
        "count": (pa.array([1, 2], pa.int16()), [1, 2]),
        "when": (pa.array([when, None], pa.timestamp("us", tz="UTC")), [when, None]),
        "kind": (pa.array(["x", "y"]).dictionary_encode(), ["x", "y"]),
        "nothing": (pa.nulls(2), [None, None]),
        "large": (pa.array(["l", None], pa.large_string()), ["l", None]),
        "tags": ([["é", "b"], None], [["é", "b"], None]),
        "nested": ([{"a": 1, "when": when.date()}, None], ['{"a": 1, "when": "2026-11-21"}', None]),
        "lists.of": ([[{"a": [1]}], []], ['[{"a": [1]}]', "[]"]),
        "key": (pa.array([key.bytes, None], pa.uuid()), [str(key), None]),
    }
    written = {name: values for name, (values, _) in columns.items()}
    content = parquet(uri=["a.jpg", "b.jpg"], picture=[b"\xff", b""], **written)
    listing = list_images(str(put(tmp_path / "list.parquet", content)))
    assert metadata(listing) == {name: expected for name, (_, expected) in columns.items()}
    assert listing.schema.field("count").type == pa.int16()
    for name in ("image_id", "uri", "etag", "kind", "nothing", "large", "key"):
        assert listing.schema.field(name).type == pa.large_string()
    assert listing.schema.field("tags").type == pa.large_list(pa.large_string())
    assert [listing.schema.field(name).type for name in ("nested", "lists.of")] == [JSON, JSON]


def test_metadata_does_not_take_a_rows_own_names(tmp_path: Path) -> None:
    taken = [*FIXED_COLUMNS, "pixels", "fetch_seconds", "decode_seconds"]
    taken.remove("uri")
    row = {"uri": "a.jpg", **{name: f"my {name}" for name in taken}, "source_size": "other", "_row": "r", "url": "u"}
    listing = list_images(write_list(tmp_path / "list.jsonl", [row]))
    expected = {f"source_{name}": [f"my {name}"] for name in taken}
    del expected["source_size"]
    others = {"source_source_size": ["my size"], "source_size": ["other"], "_row": ["r"], "url": ["u"]}
    assert metadata(listing) == {**expected, **others}
    assert (ids(listing), listing["size"].to_pylist()) == ([f"{tmp_path}/a.jpg"], [None])


def test_rows_without_a_uri_stay_for_the_job_to_reject(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"uri": "", "id": "x"}, {"uri": None}, {"uri": "  "}, {"uri": " a.jpg ", "id": None}]
    listing = list_images(write_list(tmp_path / "list.jsonl", rows))
    assert ids(listing) == ["x", "list.jsonl#row=1", "list.jsonl#row=2", f"{tmp_path}/a.jpg"]
    assert uris(listing) == [None, None, None, f"{tmp_path}/a.jpg"]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_the_first_row_of_a_list_keeps_a_repeated_id_and_the_others_are_rejects(tmp_path: Path, kind: str) -> None:
    names = [("a.jpg", "1"), ("b.jpg", "2"), ("c.jpg", "1"), ("a.jpg", "1"), (None, "2"), ("d.jpg", "1")]
    rows = [{"uri": uri, "id": image_id} for uri, image_id in names]
    listing = list_images(write_list(tmp_path / f"list.{kind}", rows))
    again = ["1#duplicate=2", "1#duplicate=3", "2#duplicate=2", "1#duplicate=4"]
    assert ids(listing) == ["1", "2", *again]
    assert uris(listing) == [*(f"{tmp_path}/{name}.jpg" for name in "abca"), None, f"{tmp_path}/d.jpg"]
    assert {name: reason for name, (reason, _) in refused(listing).items()} == dict.fromkeys(again, "duplicate_id")
    remedy = "give each row an id of its own, or remove it"
    messages = [refused(listing)[name][1] for name in again[:2]]
    assert messages == [
        f"its id '1' is already that of {tmp_path}/a.jpg: {remedy}",
        f"its id '1' is the same picture, listed again: {remedy}",
    ]


def test_a_repeated_id_gets_a_name_that_no_row_of_the_list_has(tmp_path: Path) -> None:
    names = ["x", "x", "x#duplicate=2", "x", "x#duplicate=2"]
    lines = "".join(f"{number}.jpg,{name}\n" for number, name in enumerate(names))
    listing = list_images(write_csv(tmp_path / "list.csv", f"uri,id\n{lines}"))
    renamed = ["x#duplicate=3", "x#duplicate=4", "x#duplicate=2#duplicate=2"]
    assert ids(listing) == ["x", "x#duplicate=2", *renamed]
    assert uris(listing) == [f"{tmp_path}/{number}.jpg" for number in (0, 2, 1, 3, 4)]


def test_unreadable_lines_reject_only_themselves(tmp_path: Path) -> None:
    listing = list_images(write_csv(tmp_path / "list.csv", "uri,id\na.jpg,1\nb.jpg\nc.jpg,3,x\nd.jpg,4\n"))
    assert ids(listing) == ["1", "4", "list.csv#line=3", "list.csv#line=4"]
    assert refused(listing) == {
        "list.csv#line=3": ("bad_line", "expected 2 values, got 1: b.jpg"),
        "list.csv#line=4": ("bad_line", "expected 2 values, got 3: c.jpg,3,x"),
    }
    (tmp_path / "list.jsonl").write_text('{"uri": "a.jpg", "n": 1}\n\n{"uri": \n7\n{"uri": "d.jpg", "n": "many"}\n')
    listing = list_images(str(tmp_path / "list.jsonl"))
    assert uris(listing) == [f"{tmp_path}/a.jpg", f"{tmp_path}/d.jpg", None, None]
    assert listing["n"].to_pylist() == ["1", "many", None, None]
    reasons = refused(listing)
    assert reasons["list.jsonl#line=4"] == ("bad_line", "expected a JSON object, got '7'")
    assert reasons["list.jsonl#line=3"][1].startswith("expected a JSON object, got '{\"uri\": ' (")


def test_text_that_is_not_utf8_is_escaped(tmp_path: Path) -> None:
    columns = {"id": pa.array([b"x", b"\xff", None], pa.binary()), "picture": [b"1", b"2", b"3"]}
    pq.write_table(pa.table(columns), tmp_path / "images.parquet")
    listing = list_images(str(tmp_path / "images.parquet"))
    assert (ids(listing), fetched(listing)) == (["x", "\\xff", "images.parquet#2"], [b"1", b"2", b"3"])
    columns["id"] = pa.array([b"x", b"\xff", None], pa.binary(1))
    pq.write_table(pa.table(columns), tmp_path / "images.parquet")
    assert ids(list_images(str(tmp_path / "images.parquet"))) == ids(listing)
    texts = pa.array([b"caf\xe9", b"plain"])
    note = pa.Array.from_buffers(pa.string(), 2, texts.buffers())
    pq.write_table(pa.table({"uri": ["a.jpg", "b.jpg"], "note": note}), tmp_path / "list.parquet")
    assert metadata(list_images(str(tmp_path / "list.parquet"))) == {"note": ["caf\\xe9", "plain"]}
    put(tmp_path / "list.jsonl", b'{"uri": "a.jpg", "note": "caf\xe9"}\n' + '{"uri": "b.jpg", "note": "é"}\n'.encode())
    listing = list_images(str(tmp_path / "list.jsonl"))
    assert (ids(listing), metadata(listing)["note"]) == ([f"{tmp_path}/b.jpg", "list.jsonl#line=1"], ["é", None])


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "tar"])
def test_an_unreadable_list_or_tar_rejects_only_itself(tmp_path: Path, kind: str) -> None:
    for name in ("a", "c"):
        if kind == "tar":
            write_tar(tmp_path / f"{name}.tar", {f"{name}.jpg": b"x"})
        else:
            write_list(tmp_path / f"{name}.{kind}", [{"uri": f"{name}.jpg"}])
    bad = put(tmp_path / f"b.{kind}", b"no such thing")
    listing = list_images(str(tmp_path))
    assert (listing.num_rows, ids(listing)[-1], uris(listing)[-1]) == (3, f"b.{kind}", str(bad))
    assert listing["size"].to_pylist()[-1] == len(b"no such thing")
    reason, message = refused(listing)[f"b.{kind}"]
    assert reason == "unreadable"
    assert str(bad) in message
    for name in ("a", "c"):
        put(tmp_path / f"{name}.{kind}", b"nor this one")
    with pytest.raises(SourceError, match=rf"lists no images: .*/a\.{kind}"):
        list_images(str(tmp_path))


def test_a_file_with_an_impossible_time_is_listed_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "a.jpg")
    stat = Path.stat
    monkeypatch.setattr(Path, "stat", lambda path: os.stat_result([*stat(path)[:8], 10**15, 0]))
    assert list_images(str(tmp_path / "a.jpg"))["modified"].to_pylist() == [None]


def test_an_unreadable_folder_rejects_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path, ["a.jpg", "locked/b.jpg"])
    scandir = os.scandir

    def scan(folder: str) -> Any:  # root may read everything
        if folder == f"{tmp_path}/locked":
            raise PermissionError(13, "Permission denied", folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", scan)
    listing = list_images(str(tmp_path))
    assert ids(listing) == ["a.jpg", "locked"]
    assert refused(listing) == {"locked": ("unreadable", f"cannot list {tmp_path}/locked: Permission denied")}
    (tmp_path / "a.jpg").unlink()
    with pytest.raises(SourceError, match=r"lists no images: cannot list .*/locked: Permission denied"):
        list_images(str(tmp_path))
    with pytest.raises(SourceError, match=r"cannot list .*/locked: .*Permission denied"):
        list_images(f"{tmp_path}/locked")


def test_a_csv_whose_types_change_half_way_is_read_as_text(tmp_path: Path) -> None:
    lines = [f"{number}.jpg,{number}" for number in range(2_000)]
    listing = list_images(write_csv(tmp_path / "list.csv", "\n".join(["uri,rank", *lines, "x.jpg,none"])))
    assert metadata(listing)["rank"][-2:] == ["1999", "none"]


def test_the_separator_is_the_one_that_yields_the_address_column(tmp_path: Path) -> None:
    listing = list_images(write_csv(tmp_path / "a.csv", "uri,size;colour;price\na.jpg,1;red;9\n"))
    assert metadata(listing) == {"size;colour;price": ["1;red;9"]}
    listing = list_images(write_csv(tmp_path / "b.csv", "link;a,b,c\nb.jpg;1,2,3\n"), uri_column="link")
    assert metadata(listing) == {"a,b,c": ["1,2,3"]}


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_uri_column_names_the_address_column(tmp_path: Path, kind: str) -> None:
    rows = [{"image_url": "a.jpg", "uri": "page/1"}, {"image_url": "https://host/b.jpg", "uri": "page/2"}]
    location = write_list(tmp_path / f"list.{kind}", rows)
    listing = list_images(location, uri_column="image_url")
    assert uris(listing) == [f"{tmp_path}/a.jpg", "https://host/b.jpg"]
    assert metadata(listing) == {"source_uri": ["page/1", "page/2"]}
    with pytest.raises(SourceError, match=r"has no column `link`.*; its columns are image_url, uri\. Name the one"):
        list_images(location, uri_column="link")


@pytest.mark.parametrize("option", [{"uri_column": "link"}, {"id_column": "sku"}, {"column_types": {"ean": "text"}}])
def test_columns_are_refused_for_a_folder_without_lists(tmp_path: Path, option: dict[str, Any]) -> None:
    name = f"--{next(iter(option)).replace('_', '-')}"
    put(tmp_path / "a.jpg")
    with pytest.raises(SourceError, match=rf"has no lists, but {name} names a column of a list: omit {name}"):
        list_images(str(tmp_path), **option)


# Parquet files that hold the images


def test_cells_of_parquet_files_fetch_to_the_very_bytes(tmp_path: Path) -> None:
    pictures = [os.urandom(number) for number in range(10, 17)]
    cells = [{"bytes": data, "path": None} for data in pictures]
    table = pa.table({"image": cells, "label": list("aabbccd"), "size": range(7)})
    pq.write_table(table, tmp_path / "part-0.parquet", row_group_size=3)
    pq.write_table(table.slice(0, 2), tmp_path / "part-1.parquet")
    listing = list_images(str(tmp_path))
    assert ids(listing) == [f"part-0.parquet#{i}" for i in range(7)] + ["part-1.parquet#0", "part-1.parquet#1"]
    assert uris(listing)[6] == f"{tmp_path}/part-0.parquet#row=6&column=image"
    assert fetched(listing) == [*pictures, *pictures[:2]]
    assert metadata(listing) == {"label": list("aabbccdaa"), "source_size": [*range(7), 0, 1]}
    assert listing["modified"].null_count == 0


def test_an_id_that_is_a_date_stays_as_it_is_written(tmp_path: Path) -> None:
    put(tmp_path / "list.jsonl", b'{"id": "2020-01-01", "uri": "a.jpg"}\n{"uri": "b.jpg", "id": "2020-01-02T10:00Z"}')
    assert ids(list_images(str(tmp_path / "list.jsonl"))) == ["2020-01-01", "2020-01-02T10:00Z"]


# Tars


def write_tar(path: Path, members: Mapping[str, bytes] | Sequence[tuple[str, bytes]], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]  # the mode is a variable
        folder = tarfile.TarInfo(".")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, data in members.items() if isinstance(members, Mapping) else members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def test_tars_are_fetched_by_range_and_their_sidecars_are_metadata(tmp_path: Path) -> None:
    pictures = [os.urandom(number) for number in (600, 1, 512, 0)]
    write_tar(
        tmp_path / "b.tar",
        {
            "./0001.json": b'{"caption": "a star", "size": 9, "tags": ["x"]}',
            "./0001.jpg": pictures[0],
            "./0001.cls": b"3\n",
            "deep/0002.seg.png": pictures[1],
            "deep/0002.txt": "zwölf".encode(),
            "0003.json": b"{broken",
            "0003.jpg": pictures[2],
            "0003.npy": b"?",
            "._0003.jpg": b"resource fork",
        },
    )
    write_tar(tmp_path / "a.tar", {"0004.jpg": pictures[3], "0004.json": b'{"caption": 5}'})
    listing = list_images(str(tmp_path))
    assert ids(listing) == ["a.tar/0004.jpg", "b.tar/./0001.jpg", "b.tar/deep/0002.seg.png", "b.tar/0003.jpg"]
    assert fetched(listing) == [pictures[3], *pictures[:3]]
    assert listing["size"].to_pylist() == [0, 600, 1, 512]
    assert metadata(listing) == {
        "caption": ["5", "a star", None, None],
        "source_size": [None, 9, None, None],
        "tags": [None, ["x"], None, None],
        "cls": [None, "3", None, None],
        "txt": [None, None, "zwölf", None],
    }
    assert ids(list_images(str(tmp_path), extensions=("png",))) == ["b.tar/deep/0002.seg.png"]


def test_names_and_texts_in_tars_need_not_be_unicode(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {os.fsdecode(b"\xe9.jpg"): b"data", os.fsdecode(b"\xe9.json"): b'{"t": "\\ud800"}'})
    listing = list_images(str(tmp_path / "a.tar"))
    assert (ids(listing), fetched(listing)) == (["a.tar/\\udce9.jpg"], [b"data"])
    assert metadata(listing) == {"t": ["\\ud800"]}


@pytest.mark.parametrize("metadata", [b'{"tags": ["cut \\ud83d"]}', b'{"\\ud83d": 1}'])
def test_metadata_with_half_a_character_rejects_no_image(tmp_path: Path, metadata: bytes) -> None:
    write_tar(tmp_path / "a.tar", {"0001.jpg": b"data", "0001.json": metadata, "0002.jpg": b"more"})
    assert fetched(list_images(str(tmp_path / "a.tar"))) == [b"data", b"more"]
    put(tmp_path / "a.jsonl", b'{"uri": "a.jpg", ' + metadata[1:] + b'\n{"uri": "b.jpg"}')
    assert uris(list_images(str(tmp_path / "a.jsonl"))) == [f"{tmp_path}/a.jpg", f"{tmp_path}/b.jpg"]


def test_a_sidecar_nested_too_deeply_rejects_no_image(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"0001.jpg": b"data", "0001.json": b"[" * 50_000})
    assert fetched(list_images(str(tmp_path / "a.tar"))) == [b"data"]


def test_a_tar_with_a_damaged_number_rejects_only_itself(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"a.jpg": b"x"})
    with tarfile.open(tmp_path / "b.tar", "w") as tar:
        member = tarfile.TarInfo("b.jpg")
        member.pax_headers = {"GNU.sparse.map": "0,damaged"}
        tar.addfile(member)
    assert refused(list_images(str(tmp_path)))["b.tar"][0] == "unreadable"


def test_what_webdataset_itself_writes_can_be_read(tmp_path: Path) -> None:
    with webdataset.TarWriter(str(tmp_path / "shard.tar")) as writer:
        for number in range(3):
            writer.write({"__key__": f"{number:04}", "jpg": b"x" * number, "cls": number, "json": {"n": number}})
    listing = list_images(str(tmp_path / "shard.tar"))
    assert fetched(listing) == [b"", b"x", b"xx"]
    assert metadata(listing) == {"cls": ["0", "1", "2"], "n": [0, 1, 2]}


def test_the_last_of_several_members_with_one_name_counts(tmp_path: Path) -> None:
    of_a = [("a.jpg", b"old"), ("a.json", b'{"note": "old", "more": 1}')]
    again = [("./a.jpg", b"new"), ("a.json", b'{"note": "new"}')]
    write_tar(tmp_path / "x.tar", [*of_a, ("b.jpg", b"other"), *again])
    listing = list_images(str(tmp_path / "x.tar"))
    assert (ids(listing), fetched(listing)) == (["x.tar/./a.jpg", "x.tar/b.jpg"], [b"new", b"other"])
    assert metadata(listing) == {"note": ["new", None]}


def test_a_tar_that_is_damaged_in_the_middle_is_refused_and_not_cut_short(tmp_path: Path) -> None:
    whole = write_tar(tmp_path / "x.tar", {f"{name}.jpg": b"x" * 600 for name in "abcd"}).read_bytes()
    damaged = bytearray(whole)
    damaged[whole.index(b"c.jpg")] ^= 1
    (tmp_path / "x.tar").write_bytes(damaged)
    with pytest.raises(SourceError, match=r"cannot read .*/x\.tar as an uncompressed tar: no header at byte 3584"):
        list_images(str(tmp_path))
    (tmp_path / "x.tar").write_bytes(whole[: whole.index(b"d.jpg")])  # some writers leave the end of the archive out
    assert len(list_images(str(tmp_path))) == 3


def test_broken_and_compressed_tars_are_refused(tmp_path: Path) -> None:
    packed = write_tar(tmp_path / "x.tar", {"0001.jpg": b"x" * 5000}, "w:gz")
    with pytest.raises(SourceError, match=r"cannot read .*/x\.tar as an uncompressed tar"):
        list_images(str(packed))
    packed.rename(tmp_path / "x.tar.gz")
    with pytest.raises(SourceError, match=r"has 1 file, but nothing .* expected .*uncompressed tars.*, got \.tar\.gz"):
        list_images(str(tmp_path))
    cut = write_tar(tmp_path / "cut.tar", {"0001.jpg": b"x" * 5000, "0002.jpg": b"y" * 5000})
    cut.write_bytes(cut.read_bytes()[:9000])
    with pytest.raises(SourceError, match=r"cannot read .*/cut\.tar as an uncompressed tar: unexpected end of data"):
        list_images(str(cut))
    with pytest.raises(SourceError, match=r"empty\.tar lists no images: its tables or tars have no rows"):
        list_images(str(write_tar(tmp_path / "empty.tar", {})))
    members = {".a.jpg": b"x", ".b/a.jpg": b"x", "readme.txt": b"hello"}
    with pytest.raises(SourceError, match=r"all that it has is left out \(2 hidden, in tars, 1 \.txt, in tars\)"):
        list_images(str(write_tar(tmp_path / "empty.tar", members)))


def test_members_of_tars_may_have_paths_that_lead_out_of_them(tmp_path: Path) -> None:
    names = ["../a.jpg", "b/../../a.jpg", "/a.jpg", "b/../c.jpg"]
    write_tar(
        tmp_path / "x.tar", {**{name: name.encode() for name in names}, "../.a.jpg": b"x", "../a.json": b'{"k": 1}'}
    )
    left_out = Counter[str]()
    listing = list_images(str(tmp_path), left_out=left_out)
    assert ids(listing) == [f"x.tar/{name}" for name in names]
    assert fetched(listing) == list(map(str.encode, names))
    assert (metadata(listing), left_out) == ({"k": [1, None, None, None]}, {"hidden, in tars": 1})
    assert ids(list_images(str(tmp_path), exclude=["a.jpg"])) == ["x.tar/b/../c.jpg"]


# Object stores


def test_a_prefix_of_a_bucket(store: Bucket, tmp_path: Path) -> None:
    root = f"s3://{store.name}"
    tar = write_tar(tmp_path / "shard.tar", {"0001.jpg": b"in a tar"}).read_bytes()
    files = {
        "pics/cats/a b.jpg": b"a",
        "pics/100%25.png": b"b",
        "pics/.hidden.jpg": b"h",
        "pics/notes.txt": b"n",
        "lists/list.csv": f"uri,id\nmine/c.jpg,c\n{root}/pics/100%25.png,d\n".encode(),
        "lists/mine/c.jpg": b"c",
        "tars#1/shard.tar": tar,
        "tars": b"another object",
        "cells/cells.parquet": parquet(image=[b"in a cell"]),
    }
    for key, data in files.items():
        store.put(key, data)
    for location in (f"{root}/pics", f"{root}/pics/", f"{root}/pics?region=us-east-1"):
        listing = list_images(location)
        assert ids(listing) == ["100%25.png", "cats/a b.jpg"]
        assert uris(listing) == [f"{root}/pics/100%25.png", f"{root}/pics/cats/a b.jpg"]
        assert metadata(listing) == {"label": [None, "cats"], "folder": [None, "cats"]}
        assert listing["size"].to_pylist() == [1, 1]
        assert listing["modified"].null_count == 0
        assert fetched(listing) == [b"b", b"a"]
    listing = list_images(f"{root}/lists/list.csv")
    assert dict(zip(ids(listing), fetched(listing), strict=True)) == {"c": b"c", "d": b"b"}
    assert fetched(list_images(f"{root}/tars#1")) == [b"in a tar"]
    assert fetched(list_images(f"{root}/cells/cells.parquet")) == [b"in a cell"]
    assert {"c", "pics/cats/a b.jpg", "tars#1/shard.tar/0001.jpg"} <= set(ids(list_images(root)))
    for missing in (f"{root}/nothing", "s3://other/pics"):
        with pytest.raises(SourceError, match=r"does not exist or is empty\. Check the bucket, the prefix"):
            list_images(missing)


@pytest.mark.parametrize("beside", [(), ("a.jpg", "2.csv.jpg")], ids=["lists", "lists beside pictures"])
def test_tars_and_lists_of_a_bucket_are_listed_as_those_of_a_folder(
    store: Bucket, tmp_path: Path, beside: Sequence[str]
) -> None:
    folder = write_files(tmp_path / "pics", beside)
    folder.mkdir(exist_ok=True)
    for n in range(6):
        write_tar(folder / f"{n:02}.tar", {f"{each}.jpg": b"x" * n for each in range(n)})
        put(folder / f"{n:02}.csv", f"uri,id,of\n{n}.csv.jpg,{n},é{n}\n".encode("cp1252"))
        put(folder / f"{n:02}.parquet", parquet(image=[b"\xff\xd8\xff"] * n, mask=[b"x"] * n))
    for bad in ("03.tar", "04.csv", "05.parquet"):
        put(folder / bad, b"\0\1\2\3\xff")
    for path in folder.iterdir():
        store.put(f"pics/{path.name}", path.read_bytes())
    of_folder: dict[str, list[str]] = {}
    of_bucket: dict[str, list[str]] = {}
    expected = list_images(str(folder), notes=of_folder)
    listing = list_images(f"s3://{store.name}/pics", notes=of_bucket)
    assert ids(listing) == ids(expected)
    assert listing["of"] == expected["of"]
    assert [uri.rpartition("/")[2] for uri in uris(listing)] == [uri.rpartition("/")[2] for uri in uris(expected)]
    assert sorted(refused(listing)) == ["03.tar", "04.csv", "05.parquet"]
    assert of_bucket == of_folder
    assert [*map(sorted, of_bucket.values())] == [*of_bucket.values()] != []


@pytest.mark.parametrize(("size", "most"), [(2000, 12), (100_000, 40)])
def test_a_tar_of_a_bucket_takes_a_request_for_each_megabyte(
    store: Bucket, tmp_path: Path, size: int, most: int
) -> None:
    samples = {f"{n:03}.{kind}": b"1" * 10 for n in range(200) for kind in ("jpg", "json", "txt")}
    path = write_tar(tmp_path / "a.tar", samples | {f"{n:03}.jpg": b"x" * size for n in range(200)})
    store.put("a.tar", path.read_bytes())
    server = FaultyServer()
    with server.listening() as host, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}")
        listing = list_images(f"s3://{store.name}/a.tar")
    assert metadata(listing) == {"json": [1111111111] * 200, "txt": ["1111111111"] * 200}
    assert fetched(listing.slice(199)) == [b"x" * size]
    assert server.count["requests"] < most


def test_a_list_of_a_bucket_is_opened_once(store: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("a.csv", b"uri\nhttp://x.test/a.jpg\n")
    server = FaultyServer()
    with server.listening() as host:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}")
        assert uris(list_images(f"s3://{store.name}/a.csv")) == ["http://x.test/a.jpg"]
    assert server.count["requests"] < 5


@pytest.mark.parametrize("folders", [3, 80], ids=["a few folders", "many folders"])
def test_a_bucket_is_listed_whole_in_order_and_with_etags(
    store: Bucket, monkeypatch: pytest.MonkeyPatch, folders: int
) -> None:
    names = [f"{n % folders:02}/{n % 5}/{n:03}.jpg" for n in range(folders + 10)]
    names += ["40/x.jpg", "40-a/x.jpg"]  # below an object for a folder, and one that sorts between it and its name
    names += ["41.jpg/x.jpg", "42.parquet/a/x.jpg", "43.tar/x.jpg"]  # folders with names of files
    for name in names:
        store.put(f"pics/{name}", name.encode())
    for folder in ("", "40/", "40-a/", "41.jpg/", "42.parquet/", "43.tar/"):  # such as some tools create for folders
        store.put(f"pics/{folder}", b"")
    store.put("pictures/other.jpg", b"x")
    server, left_out = FaultyServer(share=0.1, seed=5, page=7), Counter[str]()
    monkeypatch.setattr("index.storage.list_objects._PAGE", 7)
    with server.listening() as host:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}")
        by_ranges = list_images(f"s3://{store.name}/pics", left_out=left_out)
        # As on Azure, for which there is no server here.
        monkeypatch.setattr("index.storage.list_objects.AzureStore", S3Store)
        by_folders = list_images(f"s3://{store.name}/pics", left_out=left_out)
    assert ids(by_ranges) == sorted(names)
    assert left_out == {}
    assert by_ranges["etag"].to_pylist() == [f'"{hashlib.md5(name.encode()).hexdigest()}"' for name in sorted(names)]
    assert by_ranges["size"].to_pylist() == [len(name) for name in sorted(names)]
    assert by_ranges["modified"].null_count == 0
    assert by_folders == by_ranges


@pytest.mark.parametrize("page", [3, 1000], ids=["pages", "one page"])
def test_keys_of_any_characters_are_fetched_if_they_are_paths(
    store: Bucket, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr("index.storage.list_objects._PAGE", page)
    names = sorted(["a b.jpg", "100%25.jpg", "é#?&+~.jpg", "sub dir/50%.jpg", "日本/x=1.jpg", "q'uote\".jpg"])
    for name in names:
        store.put(f"pics/{name}", name.encode())
    listing = list_images(f"s3://{store.name}/pics")
    assert ids(listing) == names
    assert listing["etag"].null_count == 0  # listed by obstore
    assert fetched(listing) == [name.encode() for name in names]
    store.put("pics/a//b.jpg", b"x")
    listing = list_images(f"s3://{store.name}/pics")
    assert ids(listing) == sorted([*names, "a//b.jpg"])
    assert listing["etag"].null_count == 0
    with pytest.raises(FetchError, match="empty path segment"):  # which a job counts as a reject
        fetched(listing.slice(ids(listing).index("a//b.jpg"), 1))


def test_an_object_does_not_hide_the_folder_of_its_name(store: Bucket) -> None:
    for key in ("pics", "pics/a.jpg", "one.jpg", "one.jpgs/b.jpg"):
        store.put(key, key.encode())
    assert ids(list_images(f"s3://{store.name}/pics")) == ["a.jpg"]
    assert fetched(list_images(f"s3://{store.name}/one.jpg")) == [b"one.jpg"]


# Bad sources


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("", "the source is empty: give a folder"),
        ("https://KEY:s3cret@x.test/a.jpg", "x.test/a.jpg: a source cannot be one web address. Put URLs in a list"),
        ("ftp://KEY:s3cret@x.test/pics", "expected a folder or a file:// s3:// gs:// az:// address, got ftp://"),
        ("s3://KEY:s3cret@[{}/x", "s3://[{}/x: expected an address such as s3://bucket/prefix"),
        ("s3://KEY:s3cret@{}/x#1?endpoint_override=localhost:1", "name the server in AWS_ENDPOINT_URL"),
        ("s3://KEY:s3/cr/s3cret@{}/x", "{}"),  # a slash that should have been %2F
        ("s3://KEY:s3cret@{}/x?nonsense=1", "{}"),
        ("s3://KEY:s3cret@{}/nothing", "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ("s3://{}/empty", "{}/empty has 1 file, but nothing that can be embedded"),
        ("az://container/x", "set AZURE_STORAGE_ACCOUNT"),
    ],
)
def test_locations_that_cannot_be_sources_are_named_without_credentials(
    store: Bucket, monkeypatch: pytest.MonkeyPatch, location: str, message: str
) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT", raising=False)
    store.put("empty/notes.txt", b"n")
    with pytest.raises(SourceError) as error:
        list_images(location.format(store.name))
    assert message.format(store.name) in str(error.value)
    assert "s3cret" not in str(error.value)


def test_a_folder_that_is_missing_or_empty(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as error:
        list_images(f"{tmp_path}/deep/er/gone")
    with pytest.raises(SourceError, match="~nobody-of-this-name/x does not exist"):
        list_images("~nobody-of-this-name/x")
    assert str(error.value) == f"{tmp_path}/deep/er/gone does not exist (the nearest existing folder is {tmp_path})"
    (tmp_path / "link").symlink_to("/nowhere")
    with pytest.raises(SourceError, match="link is a link to /nowhere, which does not exist"):
        list_images(str(tmp_path / "link"))
    (tmp_path / "empty" / "below").mkdir(parents=True)
    put(tmp_path / "empty" / ".DS_Store")
    with pytest.raises(SourceError, match=r"empty is empty: expected images \(jpg, .*\), uncompressed tars or lists"):
        list_images(str(tmp_path / "empty"))
    put(tmp_path / "empty" / "README")
    with pytest.raises(SourceError, match=r"has 2 files, but nothing that can be embedded: .* got hidden, no ext"):
        list_images(str(tmp_path / "empty"))
    with pytest.raises(SourceError, match=r"README/x does not exist|cannot list .*README/x"):
        list_images(str(tmp_path / "empty" / "README" / "x"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.parquet", b"garbage" * 10, r"cannot read .*/x\.parquet as parquet: Parquet magic bytes not found"),
        ("x.parquet", b"", r"cannot read .*/x\.parquet as parquet: .*size is 0 bytes"),
        ("x.csv", b"uri,id\na.jpg\n", r"x\.csv lists no images: expected 2 values, got 1: a\.jpg"),
        ("x.csv", b"", r"cannot read .*/x\.csv as csv: Empty CSV file"),
        ("x.csv", b"uri,id\n", r"x\.csv lists no images: its tables or tars have no rows"),
        ("x.jsonl", b'{"uri": ', r"cannot read .*/x\.jsonl as jsonl: JSON parse error"),
        ("x.jsonl", b"", r"cannot read .*/x\.jsonl as jsonl: Empty JSON"),
        (
            "x.csv",
            b"path,id\na.jpg,1\n",
            r"no column `uri` or `url` or `file_name`; its columns are path, id\. Name the",
        ),
        ("x.jsonl", b'{"uri": ["a.jpg"]}', r"expected paths or URLs in column `uri`, got list<"),
        ("x.csv", b"uri,n,n\na.jpg,1,2\n", r"more than one column named n: rename them"),
        ("x.parquet", parquet(path=["a.jpg"], id=[1]), "no column `uri` .*, nor one of image bytes; .* path, id"),
        ("x.parquet", parquet(uri=[1, 2]), "expected paths or URLs in column `uri`, got int64"),
    ],
)
def test_lists_that_cannot_be_read(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        list_images(str(put(tmp_path / name, content)))
