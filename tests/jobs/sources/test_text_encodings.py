"""Lists that are not UTF-8: UTF-16 as Excel writes it, code pages of Windows, and bytes that are not text."""

import json
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

from jobs.errors import SourceError
from tests.support.listings import ids, list_images, metadata, put, refused, tar_of, uris

LATIN, CYRILLIC = "café – “Müller” 5 €", "Красная шапка"


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("utf-8-sig", LATIN), ("utf-16", LATIN),  # with a mark
        ("utf-16-le", LATIN), ("utf-16-be", LATIN), ("utf-32", LATIN), ("cp1252", LATIN), ("cp1252", "5 €"),
        ("cp1252", "Größe"), ("cp1252", "São João"), ("cp1252", "fiancée à Orléans, où"), ("cp1252", "Åsa Öberg"),
        ("cp1252", "20° C"), ("cp1252", "©2024"), ("cp1252", "Señor Nuñez: “¿qué?”"), ("latin-1", "voilà, naïve"),
        ("cp1250", "příliš žluťoučký kůň"), ("cp1250", "kočka a žlutý pes"), ("cp1251", CYRILLIC),
        ("cp1251", "красный"), ("cp1253", "κόκκινο καπέλο"), ("cp1254", "\u015fapka k\u0131rm\u0131z\u0131 \u011f"),
        ("cp1256", "قبعة حمراء"), ("cp1257", "raudona skrybėlė šuo"), ("cp874", "หมวกสีแดง"), ("cp932", "赤い帽子"),
        ("cp932", "カメラ"), ("gb18030", "红色的帽子"),
        ("gb18030", "联通"),  # these bytes happen to be UTF-8 too, except for the others of the list
        ("cp949", "빨간 모자"), ("big5", "紅色的帽子"),
    ],
)  # fmt: skip
def test_a_list_is_decoded(tmp_path: Path, encoding: str, text: str) -> None:
    other = {"联通": "红色的帽子"}.get(text, "plain")
    put(tmp_path / "a.csv", f'uri,"{text}",n\r\na.jpg,"{text}",1\r\nb.jpg,{other},2\r\n'.encode(encoding))
    rows = [{"uri": "a.jpg", text: text, "n": 1}, {"uri": "b.jpg", text: other, "n": 2}]
    put(tmp_path / "b.jsonl", "\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode(encoding))
    notes: dict[str, list[str]] = {}
    listing = list_images(str(tmp_path), notes=notes)
    assert uris(listing) == [f"{tmp_path}/a.jpg", f"{tmp_path}/b.jpg"] * 2
    assert metadata(listing) == {text: [text, other] * 2, "n": [1, 2] * 2}
    # Several code pages may have the same characters.
    assert sorted(chain(*notes.values())) == ([] if encoding.startswith("utf") else ["a.csv", "b.jsonl"])
    assert all(note.startswith("lists are not UTF-8 and were read as ") for note in notes)


def test_a_path_in_a_code_page_is_the_file(tmp_path: Path) -> None:
    put(tmp_path / "img" / "café.png")
    put(tmp_path / "list.csv", "uri,label\nimg/café.png,Müller\nimg/p1.png,plain\n".encode("cp1252"))
    assert Path(uris(list_images(str(tmp_path / "list.csv")))[0]).exists()


BAD = {
    "half a pair of UTF-16": b"\xff\xfeu\0r\0i",
    "half a surrogate": "uri\na\ud800\n".encode("utf-16", "surrogatepass"),
    "no UTF-32": b"\xff\xfe\0\0uri,",
    "a program": b"\x7fELF\x02\x01\x01\0" + bytes(range(256)) * 9 + b"x",
    "a picture": b"\xff\xd8\xff\xe0\0\x10JFIF\0" + bytes(range(255, 0, -1)) * 5,
    "a spreadsheet": b"PK\x03\x04\x14\0\x06\0\x08\0\0\0!\0" + bytes(range(256)) * 3,
}


def test_a_list_that_is_not_text_rejects_only_itself(tmp_path: Path) -> None:
    put(tmp_path / "a.csv", b"uri\na.jpg\n")
    bad = [put(tmp_path / f"{name}.{kind}", data) for kind in ("csv", "jsonl") for name, data in BAD.items()]
    listing = list_images(str(tmp_path))
    assert ids(listing)[0] == f"{tmp_path}/a.jpg"
    assert refused(listing).keys() == {path.name for path in bad}
    for path in bad:
        reason, message = refused(listing)[path.name]
        assert (reason, str(path) in message) == ("unreadable", True)
    message = r"as text: it is not UTF-16\. Save it as UTF-8; in Excel the type is `CSV UTF-8`"
    with pytest.raises(SourceError, match=message):
        list_images(str(tmp_path / "half a pair of UTF-16.csv"))


@pytest.mark.parametrize("count", [1, 5])
def test_a_line_that_is_not_utf8_does_not_decide_for_the_others(tmp_path: Path, count: int) -> None:
    lines = [b"uri,note\n", "a.jpg,Łódź\n".encode() * count, b"\xe9.jpg,caf\xe9\n", b"c.jpg,plain\n" * 99]
    listing = list_images(str(put(tmp_path / "list.csv", b"".join(lines))))
    assert set(zip(uris(listing), listing["note"].to_pylist(), strict=True)) == {
        *((f"{tmp_path}/a.jpg", "Łódź"), (f"{tmp_path}/\\xe9.jpg", "caf\\xe9"), (f"{tmp_path}/c.jpg", "plain"))
    }


@pytest.mark.parametrize(
    "damaged",
    [b"a.jpg,x\0y\n", b"a.jpg,xy\n" + b"\0" * 10, b"a.jpg,xy\n\0\n", "a.jpg,café\0\n".encode()],
    ids=["a zero byte", "zeros at the end", "a line of one", "beside an accent"],
)
def test_a_few_zero_bytes_in_a_list_are_damage(tmp_path: Path, damaged: bytes) -> None:
    lines = b"uri,note\n" + damaged + b"b.jpg,plain\n" * 50
    listing = list_images(str(put(tmp_path / "list.csv", lines)))
    assert f"{tmp_path}/a.jpg" in ids(listing)
    assert metadata(listing)["note"].count("plain") == 50


@pytest.mark.parametrize("text", ["红色的帽子" * 9, CYRILLIC, LATIN])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_a_list_in_utf16_needs_no_mark(tmp_path: Path, text: str, encoding: str) -> None:
    content = f"{text[:3]},uri\n" + f'"{text}",a.jpg\n' * 20
    listing = list_images(str(put(tmp_path / "list.csv", content.replace("“", "").encode(encoding))))
    assert set(metadata(listing)) == {text[:3]}


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("utf-8", LATIN), ("utf-8-sig", LATIN), ("utf-16", CYRILLIC),  # as Notepad's "Unicode"
        ("utf-16-le", LATIN), ("cp1252", "Müller im Café"), ("cp1252", "5 €"), ("cp1251", CYRILLIC),
    ],
)  # fmt: skip
def test_captions_are_decoded(tmp_path: Path, encoding: str, text: str) -> None:
    data, attributes = text.encode(encoding), json.dumps({"title": text}, ensure_ascii=False).encode(encoding)
    put(tmp_path / "a.jpg")
    put(tmp_path / "a.txt", data)
    put(tmp_path / "b.tar", tar_of("b.jpg", b__txt=data, b__json=attributes))
    notes: dict[str, list[str]] = {}
    left_out = Counter[str]()
    listing = list_images(str(tmp_path), notes=notes, left_out=left_out)
    assert (metadata(listing)["txt"], metadata(listing)["title"], +left_out) == ([text, text], [None, text], {})
    guessed = [] if encoding.startswith("utf") else [["a.txt", "b.tar"]]
    assert [*notes.values()] == guessed


def test_the_code_page_of_captions_is_found_from_all_of_them(tmp_path: Path) -> None:
    """One word is often too little."""
    words = ["mały", "kot", "żółty", "koń", "liść", "dąb", "wąż"]
    for number, word in enumerate(words):
        put(tmp_path / f"{number}.jpg")
        put(tmp_path / f"{number}.txt", word.encode("cp1250"))
    members = {f"{number}__txt": word.encode("cp1250") for number, word in enumerate(words)}
    put(tmp_path / "t.tar", tar_of(*(f"{number}.jpg" for number in range(len(words))), **members))
    notes: dict[str, list[str]] = {}
    assert metadata(list_images(str(tmp_path), notes=notes))["txt"] == words * 2
    assert notes == {
        "captions are not UTF-8 and were read as cp1250": [*(f"{n}.txt" for n in (0, 2, 3, 4, 5, 6)), "t.tar"]
    }


@pytest.mark.parametrize("text", ["café rouge", "5 €", "Ärger", "voilà", "naïve"])
def test_a_single_accent_is_western(tmp_path: Path, text: str) -> None:
    put(tmp_path / "a.jpg")
    put(tmp_path / "a.txt", text.encode("cp1252"))
    put(tmp_path / "list.csv", f"uri,txt\nb.jpg,{text}\n".encode("cp1252"))
    assert metadata(list_images(str(tmp_path)))["txt"] == [text, text]


def test_captions_that_are_not_text_are_counted(tmp_path: Path) -> None:
    put(tmp_path / "a.jpg")
    put(tmp_path / "a.txt", BAD["a program"])
    put(tmp_path / "b.tar", tar_of("b.jpg", b__txt=BAD["a program"]))
    left_out = Counter[str]()
    listing = list_images(str(tmp_path), left_out=left_out)
    assert set(metadata(listing).get("txt", [None])) == {None}
    assert +left_out == {".txt that cannot be read, or of more than 1 MB": 1, ".txt that cannot be read, in tars": 1}
