"""Both clients of a bucket follow its address and the environment."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow.fs as pafs
import pytest
from obstore.store import AzureStore, S3Store

from index.errors import CollectionError
from index.storage import Storage
from index.storage.bucket_address import Bucket
from index.storage.clients import filesystem, object_store
from index.storage.objects import put, read
from tests.support.scripted_server import Reply, scripted


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Its environment has a key and nothing else."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    for name in ("ACCOUNT", "KEY", "SAS_TOKEN", "CONNECTION_STRING"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    for cached in (object_store, filesystem):
        cached.cache_clear()
    return monkeypatch


def s3_clients(address: str) -> tuple[pafs.S3FileSystem, S3Store]:
    bucket, _ = Bucket.of(address)
    files, store = filesystem(bucket), object_store(bucket)
    assert isinstance(files, pafs.S3FileSystem)
    assert isinstance(store, S3Store)
    return files, store


@pytest.mark.parametrize(
    ("address", "environment", "region"),
    [
        ("s3://mine/a", {"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "us-west-2"}, "eu-west-1"),
        ("s3://mine/a", {"AWS_DEFAULT_REGION": "us-west-2"}, "us-west-2"),
        # A process looks up a bucket's region once.
        ("s3://mine/a", {}, "ap-south-1"),
        ("s3://anonymous@public/a", {}, "ap-south-1"),
        ("s3://K:S@yours/a", {}, "ap-south-1"),
        ("s3://K:S@mine/a?region=sa-east-1", {"AWS_REGION": "eu-west-1"}, "sa-east-1"),
        ("s3://mine/a", {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_REGION": "garage"}, "garage"),
    ],
)
def test_both_clients_use_the_same_region(
    machine: pytest.MonkeyPatch, address: str, environment: dict[str, str], region: str
) -> None:
    for name, value in environment.items():
        machine.setenv(name, value)
    amazon = Mock(return_value="ap-south-1")
    machine.setattr(pafs, "resolve_s3_region", amazon)
    files, store = s3_clients(address)
    assert (files.region, store.config.get("region")) == (region, region)
    assert amazon.call_count == (region == "ap-south-1")


def test_a_profile_sets_the_region_of_another_server(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[default]\nregion = garage\n")
    _, store = s3_clients("s3://mine/a?endpoint_override=127.0.0.1:1")
    assert store.config.get("region") == "garage"


@pytest.mark.parametrize(
    ("login", "sent"), [("K:S@", ("K", None)), ("", ("key", "the environment's"))], ids=["address", "environment"]
)
def test_the_sent_keys_and_session_token(machine: pytest.MonkeyPatch, login: str, sent: tuple[str, str | None]) -> None:
    machine.setenv("AWS_SESSION_TOKEN", "the environment's")
    with scripted(Reply(status=404)) as server:
        bucket, _ = Bucket.of(f"s3://{login}mine/a?endpoint_override={server.url}&region=eu-west-1")
        with pytest.raises(FileNotFoundError):
            read(bucket, "a", 100)
    headers = server.requests[0].headers
    key = headers["authorization"].split("Credential=")[1].split("/")[0]
    assert (key, headers.get("x-amz-security-token")) == sent


def test_credentials_of_a_role_are_renewed_before_they_expire() -> None:
    """boto3 renews them ten minutes before."""
    _, store = s3_clients("s3://mine/a?region=eu-west-1")
    provider: Any = store.credential_provider
    assert provider()["expires_at"] <= datetime.now(UTC) + timedelta(minutes=10)


@pytest.mark.parametrize(
    ("endpoint", "suffix"),
    [("https://shop.blob.core.windows.net/", "core.windows.net"), ("https://shop.blob.x.test", "x.test")],
)
def test_with_a_signature_the_account_is_taken_from_the_server_name(
    machine: pytest.MonkeyPatch, endpoint: str, suffix: str
) -> None:
    machine.setenv(
        "AZURE_STORAGE_CONNECTION_STRING", f"BlobEndpoint={endpoint};SharedAccessSignature=sv=2024&sig=abc%3D"
    )
    server: Any = {f"{kind}_storage_authority": f".{kind}.{suffix}" for kind in ("blob", "dfs")}
    server |= {f"{kind}_storage_scheme": "https" for kind in ("blob", "dfs")}
    expected = pafs.AzureFileSystem("shop", sas_token="sv=2024&sig=abc%3D", **server)
    bucket, prefix = Bucket.of("az://images/here")
    assert (bucket.user, bucket.name, prefix) == ("shop", "images", "here")
    assert filesystem(bucket) == expected
    store = object_store(bucket)
    assert isinstance(store, AzureStore)
    assert store.config["account_name"] == "shop"
    assert store.config["endpoint"] == f"https://shop.blob.{suffix}"


def test_the_account_of_an_emulator_is_taken_from_its_path(machine: pytest.MonkeyPatch) -> None:
    machine.setenv("AZURE_STORAGE_CONNECTION_STRING", "BlobEndpoint=http://127.0.0.1:10000/devstore;AccountKey=a2V5")
    assert Bucket.of("az://images/here")[0].user == "devstore"


@pytest.mark.parametrize(("size", "part"), [(1 << 30, 8 << 20), (100 << 30, (100 << 30) // 10_000 + 1)])
def test_an_upload_has_at_most_10_000_parts(machine: pytest.MonkeyPatch, tmp_path: Path, size: int, part: int) -> None:
    path = tmp_path / "vectors.faiss"
    with path.open("wb") as file:
        file.truncate(size)  # sparse: takes no space
    machine.setattr("index.storage.objects.obstore.put", sent := Mock())
    put(Bucket.of("s3://mine/a?region=eu-west-1")[0], "a", path)
    assert sent.call_args.kwargs["chunk_size"] == part
    assert -(-size // part) <= 10_000


@pytest.mark.parametrize("scheme", ["abfs", "abfss", "az"])
def test_other_addresses_of_azure_are_refused_with_the_right_one(scheme: str) -> None:
    """Parsed as account@container, they would name another account."""
    with pytest.raises(CollectionError, match=r"\.net/here: write az://account@container/prefix"):
        Storage.open(f"{scheme}://images@shop.dfs.core.windows.net/here")
    with pytest.raises(CollectionError, match=r"write az://account@container/prefix"):
        Storage.open("abfss://images/here")
