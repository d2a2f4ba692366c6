"""Files, parts of files and object stores, fetched."""

import os
import pickle
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
from tests.support.collections.s3_server import Bucket, FaultyProxy
from tests.support.servers.scripted_server import Reply, scripted

PICTURE = bytes(range(256)) * 4


def failure(uri: str, **limits: object) -> FetchError:
    with pytest.raises(FetchError) as caught:
        Fetcher(FetchPolicy(**limits), buckets=PictureReader()).fetch(uri)  # type: ignore[arg-type]
    assert caught.value.stage == "fetch"
    return caught.value


# Policies


def test_untrusted_urls_get_a_stricter_policy() -> None:
    policy = FetchPolicy.for_untrusted_urls(["Pictures.Example", "127.0.0.1:8000", "[::1]:8000"])
    assert (policy.schemes, policy.max_bytes) == ({"http", "https"}, 16 * 2**20)
    assert policy.timeout_s < FetchPolicy().timeout_s
    assert policy.allows_host("PICTURES.example.", 9)
    assert policy.allows_host("::1", 8000)
    assert not policy.allows_host("127.0.0.1", 8001)


@pytest.mark.parametrize(
    "limits",
    [
        {"schemes": frozenset({"ftp"})},
        {"max_bytes": 0},
        {"timeout_s": 0},
        {"connect_timeout_s": -1},
        {"retries": -1},
        {"backoff_s": -0.1},
    ],
)
def test_contradictory_limits_are_refused_at_once(limits: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(limits))):
        FetchPolicy(**limits)  # type: ignore[arg-type]


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
    assert pickle.loads(pickle.dumps(fetcher)).fetch(name) == PICTURE


def test_names_that_are_not_unicode(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jpg")
    Path(path).write_bytes(PICTURE)
    assert Fetcher().fetch(path) == PICTURE
    assert failure(path + "x").message.isprintable()


def test_an_empty_file_has_no_bytes(tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").touch()
    assert Fetcher().fetch(str(tmp_path / "empty.jpg")) == b""


def test_size_is_checked_before_reading(tmp_path: Path) -> None:
    path = tmp_path / "big.jpg"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    error = failure(str(path))
    assert (error.reason, error.retryable) == ("too_many_bytes", False)
    assert error.message == f"{path}: 1,099,511,627,776 bytes, at most 67,108,864 are allowed"
    path.write_bytes(PICTURE)
    assert Fetcher(FetchPolicy(max_bytes=1024)).fetch(str(path)) == PICTURE
    assert failure(str(path), max_bytes=1023).reason == "too_many_bytes"


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("{}/missing.jpg", "not_found"),
        ("file://{}/missing.jpg", "not_found"),
        ("{}/file/below-a-file.jpg", "not_found"),
        ("{}", "not_a_file"),
        ("{}/pipe", "not_a_file"),
        ("{}/socket", "not_a_file"),
        ("/dev/zero", "not_a_file"),
        ("/dev/tty", "not_a_file"),
        ("{}/loop", "bad_uri"),
        ("{}/" + "x" * 300, "bad_uri"),
        ("{}/nul\0.jpg", "bad_uri"),
        ("", "bad_uri"),
        ("file://elsewhere/a.jpg", "bad_uri"),
        ("{}/file#bytes=9-3", "bad_uri"),
        ("{}/file#bytes=0-4", "out_of_range"),
        ("s3://bucket", "bad_uri"),
        ("s3://bucket/", "bad_uri"),
        ("s3:///key.jpg", "bad_uri"),
        ("s3://key:secret@bucket/a.jpg", "forbidden_userinfo"),
        ("ftp://host/a.jpg", "forbidden_scheme"),
    ],
)
def test_what_is_not_a_file_has_a_reason(
    uri: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"abcd")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        error = failure(uri.replace("{}", str(tmp_path)))
    assert (error.reason, error.retryable) == (reason, False)
    assert "secret" not in error.message


def test_a_file_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "private.jpg"
    path.write_bytes(PICTURE)
    path.chmod(0)
    if os.access(path, os.R_OK):  # for root permissions do not count

        def refuse(*_: object) -> None:
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr("embedder.fetch.files.pa.OSFile", refuse)
    error = failure(str(path))
    assert (error.reason, error.retryable) == ("permission_denied", False)


def test_container_accounts_have_to_be_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT", raising=False)
    error = failure("az://container/a.jpg")
    assert error.reason == "bad_uri"
    assert "AZURE_STORAGE_ACCOUNT" in error.message


# Parts of files


def test_ranges_of_bytes(tmp_path: Path) -> None:
    tar = tmp_path / "shard#1.tar"
    tar.write_bytes(PICTURE)
    fetcher = Fetcher(FetchPolicy(max_bytes=100))
    assert fetcher.fetch(f"{tar}#bytes=3-5") == b"\x03\x04\x05"
    assert fetcher.fetch(f"file://{str(tar).replace('#', '%23')}#bytes=1020-1023") == b"\xfc\xfd\xfe\xff"
    assert fetcher.fetch(f"{tar}#bytes=512-511") == b""
    assert failure(f"{tar}#bytes=0-100", max_bytes=100).reason == "too_many_bytes"
    assert failure(f"{tar}#bytes=0-1024").reason == "out_of_range"


def pictures(count: int) -> list[bytes]:
    return [b"picture %d" % i for i in range(count)]


def write_cells(path: Path, values: "pa.Array[Any]", *, group: int = 10) -> str:
    table = pa.table({"label": pa.array(range(len(values))), "image": values})
    pq.write_table(table, path, row_group_size=group)
    return str(path)


LAYOUTS = [
    pytest.param(pa.binary(), id="binary"),
    pytest.param(pa.large_binary(), id="large binary"),
    pytest.param(pa.struct([("bytes", pa.binary()), ("path", pa.string())]), id="struct"),
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_cells_of_parquet_files(layout: pa.DataType, tmp_path: Path) -> None:
    data = pictures(25)
    values = [{"bytes": d, "path": "x.jpg"} for d in data] if pa.types.is_struct(layout) else data
    uri = write_cells(tmp_path / "a.parquet", pa.array(values, layout))
    fetcher = Fetcher()
    order = [0, 24, 9, 10, 3, 19, 20]
    assert [fetcher.fetch(f"{uri}#row={row}&column=image") for row in order] == [data[row] for row in order]
    with ThreadPoolExecutor(4) as pool:
        cells = [f"file://{uri}#row={row}&column=image" for row in range(25)]
        assert list(pool.map(fetcher.fetch, cells)) == data


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("row=3&column=image", "too_many_bytes"),
        ("row=1&column=image", "not_bytes"),
        ("row=2&column=label", "not_bytes"),
        ("row=4&column=image", "no_such_row"),
        ("row=0&column=picture", "no_such_column"),
    ],
)
def test_cells_without_a_picture_have_a_reason(cell: str, reason: str, tmp_path: Path) -> None:
    values = pa.array([b"a", None, b"c", b"d" * 11], pa.binary())
    error = failure(f"{write_cells(tmp_path / 'a.parquet', values)}#{cell}", max_bytes=10)
    assert (error.reason, error.retryable) == (reason, False)


def test_a_struct_without_bytes_and_a_file_that_is_not_parquet(tmp_path: Path) -> None:
    layout = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    uri = write_cells(tmp_path / "a.parquet", pa.array([{"bytes": None, "path": "a.jpg"}], layout))
    assert failure(f"{uri}#row=0&column=image").reason == "not_bytes"
    (tmp_path / "b.parquet").write_bytes(PICTURE)
    assert failure(f"{tmp_path}/b.parquet#row=0&column=image").reason == "not_parquet"
    assert failure(f"{tmp_path}/c.parquet#row=0&column=image").reason == "not_found"


# Object stores


@pytest.fixture
def store(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A bucket whose server the environment names."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", bucket.endpoint)
    return bucket


@pytest.mark.parametrize("key", ["a.jpg", "deep/er/b c#d%20?é.png"])
def test_objects_are_read_whole_and_in_part(key: str, store: Bucket) -> None:
    store.put(key, PICTURE)
    fetcher = Fetcher(buckets=PictureReader())
    assert fetcher.fetch(f"s3://{store.name}/{key}") == PICTURE
    assert fetcher.fetch(f"s3://{store.name}/{key}#bytes=10-12") == b"\x0a\x0b\x0c"
    assert pickle.loads(pickle.dumps(fetcher)).fetch(f"S3://{store.name}/{key}") == PICTURE


@pytest.mark.parametrize("part", ["", "#bytes=10-12"])
def test_a_picture_in_a_bucket_costs_one_request(part: str, store: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Counting(FaultyProxy):
        def draw(self, request: str) -> None:
            asked.append(request)

    store.put("a.jpg", PICTURE)
    with Counting(store.server, share=0.0, seed=0).listening() as host:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://{host}")
        Fetcher(buckets=PictureReader()).fetch(f"s3://{store.name}/a.jpg{part}")
    assert asked == [f"GET /{store.name}/a.jpg"]


@pytest.mark.parametrize("part", ["1020-1024", "2000-2001", "2000-1999"])
def test_parts_beyond_the_end_of_an_object(part: str, store: Bucket) -> None:
    store.put("a.tar", PICTURE)
    error = failure(f"s3://{store.name}/a.tar#bytes={part}")
    assert (error.reason, error.retryable) == ("out_of_range", False)


def test_buckets_are_read_only_where_a_reader_is_given() -> None:
    with pytest.raises(FetchError, match=r"expected a URL with file:// or http:// or https://, got s3://"):
        Fetcher().fetch("s3://bucket/a.jpg")


def test_cells_of_parquet_objects(store: Bucket, tmp_path: Path) -> None:
    path = write_cells(tmp_path / "a.parquet", pa.array(pictures(25), pa.binary()))
    store.put("a.parquet", Path(path).read_bytes())
    assert Fetcher(buckets=PictureReader()).fetch(f"s3://{store.name}/a.parquet#row=17&column=image") == b"picture 17"


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("s3://BUCKET/missing.jpg", "not_found"),
        ("s3://no-such-bucket/a.jpg", "not_found"),
        ("s3://BUCKET/deep/", "not_a_file"),
        ("s3://BUCKET/odd//key.jpg", "bad_uri"),
        ("s3://BUCKET/big.jpg", "too_many_bytes"),
    ],
)
def test_objects_that_cannot_be_used(uri: str, reason: str, store: Bucket) -> None:
    uri = uri.replace("BUCKET", store.name)
    store.put("big.jpg", PICTURE)
    store.put("deep/er.jpg", PICTURE)
    error = failure(uri, max_bytes=1000)
    assert (error.reason, error.retryable) == (reason, False)
    assert uri in error.message


def test_a_bucket_that_asks_everybody_to_slow_down_is_asked_again(
    store: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Amazon's standard strategy gives up at the fourth answer."""

    class Throttled(FaultyProxy):
        def draw(self, request: str) -> str | None:
            with self._lock:
                self.count[request] += 1
                return "503" if self.count[request] <= 5 else None

    keys = [f"{number}.jpg" for number in range(8)]
    for key in keys:
        store.put(key, PICTURE)
    with Throttled(store.server, share=0.0, seed=0).listening() as host, ThreadPoolExecutor(8) as pool:
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
        with pytest.raises(FetchError) as caught:
            Fetcher(buckets=PictureReader(request_s=1, attempts=1)).fetch(f"s3://bucket/{key}")
    assert (caught.value.reason, caught.value.retryable) == (reason, retryable)
