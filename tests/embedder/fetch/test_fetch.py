"""Fetching files, parts of files and objects in buckets."""

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedder.errors import FetchError
from embedder.fetch.fetcher import Fetcher, FetchPolicy
from index.storage.picture_reader import PictureReader
from tests.support.collections.s3_server import Bucket, FaultyServer
from tests.support.pictures.fetching import failure
from tests.support.scripted_server import Reply, scripted

PICTURE = bytes(range(256)) * 4


def failed(uri: str, **limits: Any) -> FetchError:
    return failure(Fetcher(FetchPolicy(**limits), buckets=PictureReader()), uri)


# Policies


def test_untrusted_urls_get_a_stricter_policy() -> None:
    policy = FetchPolicy.for_untrusted_urls(["Pictures.Example", "127.0.0.1:8000", "[::1]:8000"])
    assert policy.schemes == {"http", "https"}
    assert policy.max_bytes == 16 * 2**20
    assert policy.timeout_s < FetchPolicy().timeout_s
    assert policy.allows_host("PICTURES.example.", 9)
    assert policy.allows_host("::1", 8000)
    assert not policy.allows_host("127.0.0.1", 8001)


# Local files


@pytest.mark.parametrize("name", ["a.jpg", "with space #1?.jpg", "ümläut%20.png", "x#bytes=1-", "x#row=1"])
def test_local_files_by_path_and_by_uri(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / name).write_bytes(PICTURE)
    monkeypatch.chdir(tmp_path)
    fetcher = Fetcher()
    assert fetcher.fetch(str(tmp_path / name)) == PICTURE
    assert fetcher.fetch(name) == PICTURE
    quoted = str(tmp_path / name).replace("%", "%25")
    assert fetcher.fetch(f"file://{quoted}") == PICTURE
    assert fetcher.fetch(f"FILE://localhost{quoted}") == PICTURE


def test_names_that_are_not_unicode(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jpg")
    Path(path).write_bytes(PICTURE)
    assert Fetcher().fetch(path) == PICTURE
    assert failed(path + "x").message.isprintable()


def test_size_is_checked_before_reading(tmp_path: Path) -> None:
    path = tmp_path / "big.jpg"
    path.touch()
    assert Fetcher().fetch(str(path)) == b""
    with path.open("wb") as file:
        file.truncate(1 << 40)
    error = failed(str(path))
    assert (error.reason, error.retryable) == ("too_many_bytes", False)
    assert error.message == f"{path}: 1,099,511,627,776 bytes, at most 67,108,864 are allowed"
    path.write_bytes(PICTURE)
    assert Fetcher(FetchPolicy(max_bytes=1024)).fetch(str(path)) == PICTURE
    assert failed(str(path), max_bytes=1023).reason == "too_many_bytes"


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("{}/missing.jpg", "not_found"), ("file://{}/missing.jpg", "not_found"),
        ("{}/file/below-a-file.jpg", "not_found"), ("{}", "not_a_file"), ("{}/pipe", "not_a_file"),
        ("{}/socket", "not_a_file"), ("/dev/zero", "not_a_file"), ("/dev/tty", "not_a_file"), ("{}/loop", "bad_uri"),
        ("{}/" + "x" * 300, "bad_uri"), ("{}/nul\0.jpg", "bad_uri"), ("", "bad_uri"),
        ("file://elsewhere/a.jpg", "bad_uri"), ("{}/file#bytes=9-3", "bad_uri"),
        ("{}/file#bytes=0-4", "out_of_range"), ("s3://bucket", "bad_uri"), ("s3://bucket/", "bad_uri"),
        ("s3:///key.jpg", "bad_uri"), ("s3://key:secret@bucket/a.jpg", "forbidden_userinfo"),
        ("ftp://host/a.jpg", "forbidden_scheme"),
    ],
)  # fmt: skip
def test_a_uri_that_is_not_a_file_has_a_reason(
    uri: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"abcd")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        error = failed(uri.replace("{}", str(tmp_path)))
    assert (error.reason, error.retryable) == (reason, False)
    assert "secret" not in error.message


@pytest.mark.parametrize(
    ("address", "advice"),
    [
        ("{}/a.jpg", "has it been moved or deleted?"),
        ("{}/v1.2/a.jpg", "has it been moved or deleted?"),
        ("{}/deep/er/a.jpg", "has it been moved or deleted?"),
        ("{}/img\\p0.png", "write / between folders"),
        ("{}/C:\\pictures\\a.jpg", "write / between folders"),
        ("{}/\\\\server\\share\\a.jpg", "write / between folders"),
        ("{}/C:/pictures/a.jpg", "is 'C:' a scheme, as in https://, or a drive"),
        ("{}/http:/host.test/a.jpg", "is 'http:' a scheme"),
        ("{}/data:image/png;base64,AAAA", "is 'data:image' a scheme"),
        ("{}/example.com/a.jpg", "if 'example.com' is a web server, begin the address with https://"),
        ("{}/www.example.co.uk/deep/a.jpg", "if 'www.example.co.uk' is a web server"),
        ("{}/localhost:8000/a.jpg", "if 'localhost:8000' is a web server"),
        ("{}/10.0.0.1:80/a.jpg", "if '10.0.0.1:80' is a web server"),
        *(
            ("{}/clip.mp4#t=" + time, "name a frame of 'clip.mp4' as #t=SECONDS, such as #t=12.5")
            for time in ("00:00:02", "0:01", "1,2", "npt:1", "1s", "-1", "")
        ),
        ("file://{}/clip.mp4#t=1s", "name a frame of 'clip.mp4' as #t=SECONDS"),
        ("{}/gone.mp4#t=1s", "has it been moved or deleted?"),
        ("//cdn.example.com/a.jpg", "if 'cdn.example.com' is a web server"),
    ],
)
def test_a_file_that_does_not_exist_may_be_a_wrong_address(tmp_path: Path, address: str, advice: str) -> None:
    (tmp_path / "clip.mp4").touch()
    message = failed(address.replace("{}", str(tmp_path))).message
    assert f"there is no such file; {advice}" in message


def test_a_file_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "private.jpg"
    path.write_bytes(PICTURE)
    path.chmod(0)
    if os.access(path, os.R_OK):  # permissions do not apply to root

        def refuse(*_: object) -> None:
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr("embedder.fetch.files.pa.OSFile", refuse)
    error = failed(str(path))
    assert (error.reason, error.retryable) == ("permission_denied", False)


# Parts of files


def test_ranges_of_bytes(tmp_path: Path) -> None:
    tar = tmp_path / "shard#1.tar"
    tar.write_bytes(PICTURE)
    fetcher = Fetcher(FetchPolicy(max_bytes=100))
    assert fetcher.fetch(f"{tar}#bytes=3-5") == b"\x03\x04\x05"
    assert fetcher.fetch(f"file://{str(tar).replace('#', '%23')}#bytes=1020-1023") == b"\xfc\xfd\xfe\xff"
    assert fetcher.fetch(f"{tar}#bytes=512-511") == b""
    assert failed(f"{tar}#bytes=0-100", max_bytes=100).reason == "too_many_bytes"


CELLS = [b"picture %d" % number for number in range(25)]


def write_cells(path: Path, values: "pa.Array[Any]") -> str:
    table = pa.table({"label": pa.array(range(len(values))), "image": values})
    pq.write_table(table, path, row_group_size=10)
    return str(path)


STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


@pytest.mark.parametrize("layout", [pa.binary(), pa.large_binary(), STRUCT], ids=["binary", "large binary", "struct"])
def test_cells_of_parquet_files(layout: pa.DataType, tmp_path: Path) -> None:
    values = [{"bytes": cell, "path": "x.jpg"} for cell in CELLS] if layout is STRUCT else CELLS
    uri = write_cells(tmp_path / "a.parquet", pa.array(values, layout))
    fetcher = Fetcher()
    order = [0, 24, 9, 10, 3, 19, 20]
    assert [fetcher.fetch(f"{uri}#row={row}&column=image") for row in order] == [CELLS[row] for row in order]
    with ThreadPoolExecutor(4) as pool:
        cells = [f"file://{uri}#row={row}&column=image" for row in range(25)]
        assert list(pool.map(fetcher.fetch, cells)) == CELLS


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("a.parquet#row=3&column=image", "too_many_bytes"), ("a.parquet#row=1&column=image", "not_bytes"),
        ("a.parquet#row=2&column=label", "not_bytes"), ("a.parquet#row=4&column=image", "no_such_row"),
        ("a.parquet#row=0&column=picture", "no_such_column"), ("structs.parquet#row=0&column=image", "not_bytes"),
        ("not_utf_8.parquet#row=0&column=image", "not_bytes"), ("picture.parquet#row=0&column=image", "not_parquet"),
        ("missing.parquet#row=0&column=image", "not_found"),
    ],
)  # fmt: skip
def test_cells_without_a_picture_have_a_reason(cell: str, reason: str, tmp_path: Path) -> None:
    write_cells(tmp_path / "a.parquet", pa.array([b"a", None, b"c", b"d" * 11], pa.binary()))
    write_cells(tmp_path / "structs.parquet", pa.array([{"bytes": None, "path": None}], STRUCT))
    write_cells(tmp_path / "not_utf_8.parquet", pa.array([b"\xff"]).view(pa.string()))
    (tmp_path / "picture.parquet").write_bytes(PICTURE)
    error = failed(f"{tmp_path}/{cell}", max_bytes=10)
    assert (error.reason, error.retryable) == (reason, False)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("x.jpg", None), ("deep/x.jpg", None), ("missing.jpg", "not_found"), ("", "not_bytes"),
        ("../x.jpg", "not_bytes"),  # a table may be a stranger's, and name any file
        ("deep/../../x.jpg", "not_bytes"), ("/etc/hostname", "not_bytes"), ("file:///etc/hostname", "not_bytes"),
        ("http://host.test/x.jpg", "not_bytes"),
    ],
)  # fmt: skip
def test_a_cell_without_bytes_stands_for_the_file_at_its_path(tmp_path: Path, path: str, reason: str | None) -> None:
    table = tmp_path / "data" / "a.parquet"
    for folder in (tmp_path, table.parent, table.parent / "deep"):
        folder.mkdir(exist_ok=True)
        (folder / "x.jpg").write_bytes(PICTURE)
    uri = write_cells(table, pa.array([{"bytes": b"whole", "path": path}, {"bytes": None, "path": path}], STRUCT))
    fetcher = Fetcher()
    assert fetcher.fetch(f"{uri}#row=0&column=image") == b"whole"
    if reason is None:
        assert fetcher.fetch(f"{uri}#row=1&column=image") == PICTURE
        assert failed(f"{uri}#row=1&column=image", max_bytes=10).reason == "too_many_bytes"
    else:
        error = failed(f"{uri}#row=1&column=image")
        assert error.reason == reason
        assert error.message.endswith(
            f"got only the path {path!r}, which is not below the folder of the file: move the file, or list the paths"
        ) is (reason == "not_bytes" and path != "")


# Object stores


@pytest.mark.parametrize("key", ["a.jpg", "deep/er/b c#d%20?é.png"])
def test_an_object_or_a_part_of_it_costs_one_request(key: str, store: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put(key, PICTURE)
    server = FaultyServer()
    with server.listening() as host:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://{host}")
        fetcher = Fetcher(buckets=PictureReader())
        assert fetcher.fetch(f"s3://{store.name}/{key}") == PICTURE
        assert fetcher.fetch(f"s3://{store.name}/{key}#bytes=10-12") == b"\x0a\x0b\x0c"
        assert fetcher.fetch(f"S3://{store.name}/{key}") == PICTURE
    assert server.count["requests"] == 3


def test_buckets_need_a_reader() -> None:
    with pytest.raises(FetchError, match=r"expected a URL with file:// or http:// or https://, got s3://"):
        Fetcher().fetch("s3://bucket/a.jpg")


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("s3://BUCKET/missing.jpg", "not_found"),
        ("s3://no-such-bucket/a.jpg", "not_found"),
        ("s3://BUCKET/deep/", "not_a_file"),
        ("s3://BUCKET/odd//key.jpg", "bad_uri"),
        ("s3://BUCKET/big.jpg", "too_many_bytes"),
        *((f"s3://BUCKET/big.jpg#bytes={part}", "out_of_range") for part in ("1020-1024", "2000-2001", "2000-1999")),
    ],
)
def test_unusable_objects_have_a_reason(uri: str, reason: str, store: Bucket) -> None:
    uri = uri.replace("BUCKET", store.name)
    store.put("big.jpg", PICTURE)
    store.put("deep/er.jpg", PICTURE)
    error = failed(uri, max_bytes=1000)
    assert (error.reason, error.retryable) == (reason, False)
    assert uri.partition("#")[0] in error.message


def test_throttled_requests_to_a_bucket_are_retried(store: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """More often than by Amazon's standard strategy, which gives up at the fourth answer."""

    class Throttled(FaultyServer):
        def draw(self, request: str) -> str | None:
            with self._lock:
                self.count[request] += 1
                return "503" if self.count[request] <= 5 else None

    keys = [f"{number}.jpg" for number in range(8)]
    for key in keys:
        store.put(key, PICTURE)
    with Throttled().listening() as host, ThreadPoolExecutor(8) as pool:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://{host}")
        fetcher = Fetcher(buckets=PictureReader())
        pictures = pool.map(fetcher.fetch, [f"s3://{store.name}/{key}" for key in keys])
        assert list(pictures) == [PICTURE] * len(keys)


@pytest.mark.parametrize(
    ("key", "reply", "reason", "retryable"),
    [
        ("private-404 timeout.jpg", Reply(status=403), "permission_denied", False),
        ("busy-404 denied.jpg", Reply(status=503), "read_failed", True),
        ("stall.jpg", Reply(silent_s=3, hang_up=True), "timeout", True),
    ],
)
def test_stores_that_refuse_or_fail(
    key: str, reply: Reply, reason: str, retryable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with scripted(reply) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.url)
        error = failure(Fetcher(buckets=PictureReader(request_s=1, attempts=1)), f"s3://bucket/{key}")
    assert (error.reason, error.retryable) == (reason, retryable)
