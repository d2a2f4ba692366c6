"""Sources that mix kinds: every file is listed, joined to a picture, refused or counted."""

import datetime as dt
import io
import json
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedder.fetch import Fetcher
from index.storage.picture_reader import PictureReader
from jobs.errors import SourceError
from tests.support.collections.s3_server import Bucket
from tests.support.listings import PICTURE, list_images, parquet, tar_of, write_files

CELLS = parquet(image=[{"bytes": PICTURE, "path": None}] * 3, label=[1, 2, 3])
TAR = tar_of("0.jpg", "1.jpg")
LAYOUTS: list[tuple[dict[str, bytes | str], list[str], dict[str, int]]] = [
    # files; ids; what is left out
    ({"assets/logo.png": PICTURE, "data/a.parquet": CELLS}, ["assets/logo.png", *(f"a#{n}" for n in range(3))], {}),
    ({"cover.jpg": PICTURE, "s/0.tar": TAR}, ["cover.jpg", "s/0.tar/0.jpg", "s/0.tar/1.jpg"], {}),
    ({"0.tar": TAR, "a.parquet": CELLS}, ["0.tar/0.jpg", "0.tar/1.jpg", "a#0", "a#1", "a#2"], {}),
    ({"0.tar": TAR, "more.csv": "uri,id\nhttp://x.test/a,far\n"}, ["0.tar/0.jpg", "0.tar/1.jpg", "far"], {}),
    ({"a.parquet": CELLS, "more.jsonl": '{"url": "http://x.test/a", "id": "far"}'}, ["a#0", "a#1", "a#2", "far"], {}),
    ({"a.jpg": PICTURE, "more.tsv": "url\tid\nhttp://x.test/a\tfar\n"}, ["a.jpg", "far"], {}),
    ({"a.jpg": PICTURE, "0.tar": TAR, "b.parquet": CELLS, "c.csv": "uri,id\nhttp://x.test/a,far\n"},
     ["a.jpg", "0.tar/0.jpg", "0.tar/1.jpg", "b#0", "b#1", "b#2", "far"], {}),
    # lists that name the pictures beside them
    ({"a.jpg": PICTURE, "b.jpg": PICTURE, "list.csv": "uri,id\n./b.jpg,B\n"}, ["a.jpg", "B"], {}),
    ({"train/a.jpg": PICTURE, "train/metadata.jsonl": '{"file_name": "a.jpg"}'}, ["train/a.jpg"], {}),
    ({"train/a.jpg": PICTURE, "metadata.csv": "file_name,x\ntrain/../train/a.jpg,1\n"}, ["train/a.jpg"], {}),
    ({"a.jpg": PICTURE, "l/x.csv": "uri\n../a.jpg\nhttp://x.test/a\n"}, ["a.jpg", "http://x.test/a"], {}),
    ({"a.jpg": PICTURE, "metadata.parquet": parquet(file_name=["a.jpg"], x=[1])}, ["a.jpg"], {}),
    ({"a.jpg": PICTURE, "m.csv": "url,file_name\nhttp://x.test/1,a.jpg\nhttp://x.test/2,b.jpg\n", "b.jpg": PICTURE},
     ["a.jpg", "b.jpg"], {}),
    ({"a.jpg": PICTURE, "m.csv": "uri,size\na.jpg,S\na.jpg,M\n"}, ["a.jpg", "a.jpg#2"], {}),
    ({"a.jpg": PICTURE, "m.csv": "uri,id\nb.jpg,a.jpg#2\na.jpg,\na.jpg,\na.jpg,\n"},
     ["a.jpg#2", "a.jpg", "a.jpg#3", "a.jpg#4"], {}),
    ({"a.jpg": PICTURE, "m.csv": "uri,id\nb.jpg,a.jpg\na.jpg,\n"}, ["a.jpg", "a.jpg#2"], {}),
    ({"a.jpg": PICTURE, "b.jpg": PICTURE, "m.csv": "uri,id\na.jpg,b.jpg\nb.jpg,\n"}, ["b.jpg", "b.jpg#2"], {}),
    ({"0.jpg": PICTURE, "m.parquet": parquet(image=[b"GIF89a" + bytes(9)], file_name=["x.jpg"])}, ["0.jpg", "m#0"], {}),
    (dict.fromkeys(("a.csv", "b.csv"), "uri\nhttp://h.test/x\n"), ["http://h.test/x", "http://h.test/x#2"], {}),
    # what img2dataset writes: the addresses from which the pictures came
    ({"0.tar": TAR, "0.parquet": parquet(url=["http://x.test/0", "HTTPS://x.test/1"]), "0_stats.json": "{}"},
     ["0.tar/0.jpg", "0.tar/1.jpg"], {".parquet with the origins of pictures": 1, ".json": 1}),
    ({"0/1.jpg": PICTURE, "0/1.json": "{}", "0.parquet": parquet(url=["http://x.test/0"])}, ["0/1.jpg"],
     {".parquet with the origins of pictures": 1, ".json": 1}),
    ({"0/1.jpg": PICTURE, "0.csv": "uri\n0/1.jpg\nhttp://x.test/a\n"}, ["0/1.jpg", "http://x.test/a"], {}),
    # tables that are not lists
    ({"a.jpg": PICTURE, "scores.csv": "person,score\nme,1\n"}, ["a.jpg"], {".csv without addresses or pictures": 1}),
    ({"a.jpg": PICTURE, "v.parquet": parquet(x=[1])}, ["a.jpg"], {".parquet without addresses or pictures": 1}),
    ({"0.tar": TAR, "boxes.jsonl": '{"box": [1, 2]}'}, ["0.tar/0.jpg", "0.tar/1.jpg"],
     {".jsonl without addresses or pictures": 1}),
    # captions
    ({"a.jpg": PICTURE, "a.txt": "one", "b.png": PICTURE, "b.png.txt": "two", "c.txt": "three"}, ["a.jpg", "b.png"],
     {".txt": 1}),
    ({"a.jpg": PICTURE, "a.txt": "x" * 1_000_001}, ["a.jpg"], {".txt that cannot be read, or of more than 1 MB": 1}),
    # other files
    ({"a.jpg": PICTURE, "b.psd": b"", "README": "", "c.tar.gz": b"", "d.zip": b"", "e.MP4": b"", "f.json": "{}"},
     ["a.jpg"], dict.fromkeys([".psd", "no extension", ".tar.gz", ".zip", ".mp4", ".json"], 1)),
    ({"a.parquet": CELLS, "b.tar.xz": b"", "README.md": ""}, ["a#0", "a#1", "a#2"], {".tar.xz": 1, ".md": 1}),
    ({"a.jpg": PICTURE, "b.csv.gz": b"", "c.jsonl.zst": b""}, ["a.jpg"], {".csv.gz": 1, ".jsonl.zst": 1}),
    # members of tars
    ({"0.tar": tar_of("0.jpg", "1.npy", "2.json", ".h.jpg", "@eaDir/0.jpg", "d/x.tar")}, ["0.tar/0.jpg"],
     {".npy, in tars": 1, ".json that cannot be read, in tars": 1, ".json, in tars": 1, "hidden, in tars": 1,
      "in @eaDir, in tars": 1, ".tar, in tars": 1}),
    ({"0.tar": tar_of("a.jpg", a__txt=b"x" * 1_000_001, a__json=b"{broken", b__cls=b"3")}, ["0.tar/a.jpg"],
     {".txt of more than 1 MB, in tars": 1, ".json that cannot be read, in tars": 1, ".cls, in tars": 1}),
    ({"0.tar": TAR + tar_of("2.jpg")}, ["0.tar/0.jpg", "0.tar/1.jpg", "0.tar/2.jpg"], {}),
    ({"0.tar": TAR + bytes(2**21) + tar_of("2.jpg")}, ["0.tar/0.jpg", "0.tar/1.jpg", "0.tar/2.jpg"], {}),
    ({"0.tar": TAR + b"signature"}, ["0.tar/0.jpg", "0.tar/1.jpg"], {"data after the end of tars": 1}),
    ({"0.tar": TAR + tar_of("1.jpg")}, ["0.tar/0.jpg", "0.tar/1.jpg"], {"repeated names, in tars": 1}),
    # folders that are left out
    ({"a.jpg": PICTURE, "@eaDir/a.jpg/T.jpg": PICTURE, "x/#recycle/b.jpg": PICTURE,
      "x/$Recycle.Bin/S-1/c.jpg": PICTURE}, ["a.jpg"], {"in @eaDir": 1, "in #recycle": 1, "in $Recycle.Bin": 1}),
    ({"a.jpg": PICTURE, "THUMBS/a.jpg": PICTURE, "lost+found/b.jpg": PICTURE, "__MACOSX/._a.jpg": PICTURE,
      "._a.jpg": b""}, ["a.jpg"], {"in THUMBS": 1, "in lost+found": 1, "in __MACOSX": 1, "hidden": 1}),
    ({"a.jpg": PICTURE, ".Trash-1000/files/b.jpg": PICTURE, ".@__thumb/c.jpg": PICTURE, ".git/x/y": b""}, ["a.jpg"],
     {"hidden": 3}),
    ({"a.jpg": PICTURE, "s/.nomedia": b"", "s/b.jpg": PICTURE, "s/t/c.tar": TAR, "st/d.jpg": PICTURE},
     ["a.jpg", "st/d.jpg"], {"hidden": 1, "in folders with .nomedia": 2}),
    ({".nomedia": b"", "a.jpg": PICTURE, "@recycle/list.csv": "uri\nb.jpg\n"}, ["a.jpg"],
     {"hidden": 1, "in @recycle": 1}),
    ({"a.jpg": PICTURE, "c/runs/1/started.json": b"{}", "c/runs/1/rows/1.parquet": parquet(uri=["b.jpg"]),
      "c/merged/1/1.parquet": parquet(uri=["b.jpg"]), "c/checks/1.parquet": parquet(uri=["b.jpg"]),
      "c/duplicates.jsonl": '{"uri": "x"}', "c/CURRENT": b""},
     ["a.jpg"], {".json": 1, "no extension": 1, "in a collection": 4}),
]  # fmt: skip


def listed(source: Path | str, **options: Any) -> tuple[list[str], dict[str, int]]:
    """The ids of the listed images, shortened for cells of Parquet, and what is left out."""
    left_out = Counter[str]()
    listing = list_images(str(source), left_out=left_out, **options)
    assert "error_reason" not in listing.column_names
    names = map(str, listing["image_id"].to_pylist())
    shown = [name.rpartition("/")[2].replace(".parquet", "") if ".parquet#" in name else name for name in names]
    return shown, dict(left_out)


@pytest.mark.parametrize(("files", "ids", "left_out"), LAYOUTS, ids=["+".join(files)[:60] for files, _, _ in LAYOUTS])
def test_a_source_that_mixes_kinds_is_read_as_all_of_them_and_the_rest_is_counted(
    tmp_path: Path, files: dict[str, bytes | str], ids: list[str], left_out: dict[str, int], request: Any
) -> None:
    source = write_files(tmp_path, files)
    assert listed(source) == (ids, left_out)
    request.getfixturevalue("small_parts")
    assert listed(source) == (ids, left_out)


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.long)])
def test_a_bucket_is_read_and_counted_as_a_folder_is(store: Bucket, every: int) -> None:
    for number, (files, ids, left_out) in enumerate(LAYOUTS[::every]):
        for name, content in files.items():
            store.put(f"{number}/{name}", content.encode() if isinstance(content, str) else content)
        assert listed(f"s3://{store.name}/{number}") == (ids, left_out)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"0.tar": TAR, "1.tar.gz": b"", "2.TGZ": b""}, r"cannot be read: 1 \.tar\.gz, 1 \.tgz\. Decompress"),
        ({"0.tar": TAR, "a.jpg": PICTURE, "deep/1.tar.zst": b""}, r"1 \.tar\.zst.*--exclude '\*\.tar\.zst'"),
        ({"a.csv": "uri\nhttp://x.test/a\n", "b.csv.gz": b""}, r"1 \.csv\.gz\. Decompress them"),
        ({"a.parquet": CELLS, "b.jsonl.bz2": b"", "a.jpg": PICTURE}, r"1 \.jsonl\.bz2\. Decompress them"),
        ({"a.tar.gz": b"", "b.tar.gz": b""}, r"has 2 files, but nothing that can be embedded: .* got \.tar\.gz$"),
        ({"@eaDir/a.jpg": PICTURE}, r"has 1 file, but nothing that can be embedded: .* got in @eaDir$"),
        ({"scores.csv": "person\nme\n"}, r"has no column `uri`.* Name the one with paths or URLs of images with --uri"),
    ],
)  # fmt: skip
def test_a_source_read_only_in_part_is_refused(tmp_path: Path, files: dict[str, bytes | str], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        list_images(str(write_files(tmp_path, files)))


def test_a_list_without_addresses_among_lists_is_a_reject_so_that_nothing_is_deleted(tmp_path: Path) -> None:
    lists = {"a.csv": "uri\nhttp://x.test/a\n", "b.csv": "urll\nhttp://x.test/b\n"}
    listing = list_images(str(write_files(tmp_path, lists)))
    assert listing.select(["image_id", "error_reason"]).to_pylist() == [
        {"image_id": "http://x.test/a", "error_reason": None},
        {"image_id": "b.csv", "error_reason": "unreadable"},
    ]


def test_a_list_adds_its_columns_to_the_pictures_that_it_names(tmp_path: Path) -> None:
    files = {"cat/a.jpg": PICTURE, "cat/b.jpg": PICTURE, "cat/b.txt": "as a text", "c.jpg": PICTURE}
    rows = '{"file_name": "a.jpg", "label": 7, "price": 1.5}\n{"file_name": "gone.jpg", "label": 8}\n'
    listing = list_images(str(write_files(tmp_path, {**files, "cat/metadata.jsonl": rows})))
    assert listing.drop_columns(["uri", "modified", "etag"]).to_pylist() == [
        {"image_id": name, "size": size, "label": label, "folder": folder, "txt": text, "price": price}
        for name, size, label, folder, text, price in [
            ("c.jpg", 7, None, None, None, None),
            ("cat/b.jpg", 7, "cat", "cat", "as a text", None),
            ("cat/a.jpg", 7, "7", "cat", None, 1.5),
            (f"{tmp_path}/cat/gone.jpg", None, "8", None, None, None),
        ]
    ]
    assert listing["modified"].is_valid().to_pylist() == [True, True, True, False]
    assert Fetcher(buckets=PictureReader()).fetch(listing["uri"][2].as_py()) == PICTURE


@pytest.mark.parametrize("uri_column", [None, "image"])
@pytest.mark.parametrize("group", [1, 2, 9])
def test_a_row_of_parquet_without_bytes_adds_its_columns_to_the_picture_at_its_path(
    tmp_path: Path, group: int, uri_column: str | None
) -> None:
    cells = [(None, "im/a.jpg"), (b"GIF89a" + bytes(9), "im/b.jpg"), (None, "im/gone.jpg"), (None, "../d/im/c.jpg")]
    images = [{"bytes": data, "path": path} for data, path in cells]
    file = io.BytesIO()
    pq.write_table(pa.table({"image": [*images, None], "label": [1, 2, 3, 4, 5]}), file, row_group_size=group)
    pictures = dict.fromkeys(("d/im/a.jpg", "d/im/b.jpg", "d/im/c.jpg"), PICTURE)
    write_files(tmp_path, {**pictures, "d/t.parquet": file.getvalue()})
    listing = list_images(str(tmp_path), uri_column=uri_column)
    found = {row["image_id"]: (row["uri"].removeprefix(f"{tmp_path}/d/"), row["label"]) for row in listing.to_pylist()}
    assert found == {
        "d/im/a.jpg": ("im/a.jpg", "1"),
        "d/im/b.jpg": ("im/b.jpg", "im"),
        "d/im/c.jpg": ("im/c.jpg", "4"),
        **{f"d/t.parquet#{n}": (f"t.parquet#row={n}&column=image", f"{n + 1}") for n in (1, 2, 4)},
    }
    modified = {row["image_id"]: row["modified"] for row in listing.to_pylist()}
    facts = (tmp_path / "d/im/a.jpg").stat()
    assert modified["d/im/a.jpg"] == dt.datetime.fromtimestamp(facts.st_mtime, dt.UTC)
    assert listing["size"].to_pylist().count(facts.st_size) == 3


@pytest.mark.parametrize(
    ("given", "address"),
    [  # the source; how a list in it names its picture: {} is the source without links
        ("source", "{}/a.jpg"),
        ("source", "file://{}/a.jpg"),
        ("source", "file://localhost{}/a.jpg"),
        ("source", "FILE://{}/x/../%61.jpg"),
        ("link", "{}/a.jpg"),
        ("link", "file://{}/a.jpg"),
        ("link", "a.jpg"),
        ("above/source", "{}/a.jpg"),
    ],
)
def test_an_address_with_another_spelling_names_the_picture_beside_the_list(
    tmp_path: Path, given: str, address: str
) -> None:
    write_files(
        tmp_path, {"source/a.jpg": PICTURE, "source/l.csv": f"uri,k\n{address.format(tmp_path / 'source')},1\n"}
    )
    (tmp_path / "link").symlink_to(tmp_path / "source")
    (tmp_path / "above").symlink_to(tmp_path)
    listing = list_images(str(tmp_path / given))
    assert listing.select(["image_id", "uri", "k"]).to_pylist() == [
        {"image_id": "a.jpg", "uri": f"{tmp_path}/{given}/a.jpg", "k": 1}
    ]


@pytest.mark.parametrize(
    ("name", "rows", "one", "two"),
    [  # label, folder and txt of the pictures
        (
            "m.jsonl",
            '{"label": "tabby", "txt": "one"}|{"year": 2024}',
            ("tabby", "cats", "one"),
            ("cats", "cats", "two"),
        ),
        ("m.jsonl", '{"label": 7, "folder": "x"}|{"txt": "new"}', ("7", "x", "first"), ("cats", "cats", "new")),
        ("m.jsonl", '{"label": 7, "txt": null}|{"label": 8}', (7, "cats", "first"), (8, "cats", "two")),
        ("m.jsonl", '{"label": ["x", "y"]}|{"label": null}', (["x", "y"], "cats", "first"), (["cats"], "cats", "two")),
        ("m.jsonl", '{"txt": {"en": 1}}|{}', ("cats", "cats", '{"en": 1}'), ("cats", "cats", '"two"')),
        ("m.csv", "file_name,label,txt|1.jpg,tabby,one|2.jpg,,", ("tabby", "cats", "one"), ("cats", "cats", "two")),
        ("m.csv", "file_name,label|1.jpg,1.5|2.jpg,", ("1.5", "cats", "first"), ("cats", "cats", "two")),
        ("m.parquet", "", ("2024-05-01", "cats", "first"), ("cats", "cats", "two")),
    ],
)
def test_a_row_without_a_value_leaves_what_was_found_beside_the_picture(
    tmp_path: Path, name: str, rows: str, one: tuple[Any, ...], two: tuple[Any, ...]
) -> None:
    content: Any = rows.replace("|", "\n") + "\n"
    if name == "m.jsonl":
        content = "".join(
            json.dumps({"file_name": f"{number}.jpg", **json.loads(row)}) + "\n"
            for number, row in enumerate(rows.split("|"), 1)
        )
    if name == "m.parquet":
        content = parquet(file_name=["1.jpg", "2.jpg"], label=[dt.date(2024, 5, 1), None])
    files = {"1.jpg": PICTURE, "2.jpg": PICTURE, "1.txt": "first", "2.txt": "two", name: content}
    listing = list_images(str(write_files(tmp_path, {f"cats/{file}": data for file, data in files.items()})))
    found = {row["image_id"]: (row["label"], row["folder"], row["txt"]) for row in listing.to_pylist()}
    assert found == {"cats/1.jpg": one, "cats/2.jpg": two}


@pytest.mark.usefixtures("small_parts")
def test_many_files_get_their_captions_and_what_a_list_says_of_them(tmp_path: Path) -> None:
    names = [f"{folder}/{number:02}.jpg" for folder in "zax" for number in range(7)]
    captions = {name: f"picture {number}" for number, name in enumerate(names) if number % 3}
    texts = {f"{name.removesuffix('.jpg')}.txt": text for name, text in captions.items()}
    rows = "\n".join(f'{{"file_name": "{name}", "stars": {n}}}' for n, name in enumerate(names[:14]) if n % 2)
    others = {"a/without picture.txt": "", "x/.nomedia": "", "list.jsonl": rows}
    left_out = Counter[str]()
    write_files(tmp_path, {**dict.fromkeys(names, PICTURE), **texts, **others})
    listing = list_images(str(tmp_path), left_out=left_out)
    found = {row["image_id"]: (row["txt"], row["stars"]) for row in listing.to_pylist()}
    assert found == {name: (captions.get(name), n if n % 2 else None) for n, name in enumerate(names[:14])}
    assert [*found] == [*sorted(name for n, name in enumerate(names[:14]) if n % 2 == 0), *names[1:14:2]]
    assert (left_out[".txt"], left_out["in folders with .nomedia"]) == (1, 7 + 5)


@pytest.mark.parametrize(
    ("patterns", "excluded"),
    [
        (["*.gif"], "2023/e.gif h.gif"),
        (["raw/"], "2023/raw/a.jpg 2023/raw/b.png raw/c.jpg t.tar/raw/d.jpg raw/f.jpg"),
        (["/raw"], "raw/c.jpg raw/f.jpg"),
        (
            ["2023/*", "t.tar", "*.csv"],
            "2023/e.gif 2023/raw/a.jpg 2023/raw/b.png t.tar/raw/d.jpg raw/f.jpg g.jpg h.gif",
        ),
        (["2023", "!@eaDir/", "x.test/*.gif"], "2023/e.gif 2023/raw/a.jpg 2023/raw/b.png h.gif"),
        (["**/raw/*.png", "t.tar/raw"], "2023/raw/b.png t.tar/raw/d.jpg"),
    ],
)
def test_patterns_exclude_files_folders_members_and_rows(tmp_path: Path, patterns: list[str], excluded: str) -> None:
    pictures = ("2023/raw/a.jpg", "2023/raw/b.png", "raw/c.jpg", "2023/e.gif", "@eaDir/z.jpg")
    rows = "uri\nraw/f.jpg\nhttp://x.test/g.jpg\nhttp://x.test/h.gif\n"
    write_files(tmp_path, {**dict.fromkeys(pictures, PICTURE), "t.tar": tar_of("raw/d.jpg"), "l.csv": rows})
    every = {*pictures, "t.tar/raw/d.jpg", "raw/f.jpg", "g.jpg", "h.gif"}
    found, left_out = listed(tmp_path, exclude=patterns)
    short = {name.removeprefix(f"{tmp_path}/").removeprefix("http://x.test/") for name in found}
    by_default = set() if "!@eaDir/" in patterns else {"@eaDir/z.jpg"}
    assert every - short == {*excluded.split(), *by_default}
    assert left_out.get("in @eaDir", 0) == len(by_default)
    assert left_out.get("excluded", 0) + left_out.get("excluded, in tars", 0) > 0


def test_links_in_tars_are_counted(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        picture = tarfile.TarInfo("a.jpg")
        picture.size = len(PICTURE)
        tar.addfile(picture, io.BytesIO(PICTURE))
        for number, kind in enumerate((tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE)):
            link = tarfile.TarInfo(f"{number}.jpg")
            link.type, link.linkname = kind, "a.jpg"
            tar.addfile(link)
    assert listed(tmp_path) == (["a.tar/a.jpg"], {"links, in tars": 2, "devices, pipes and sparse files, in tars": 1})
