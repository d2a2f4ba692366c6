"""The client of a bucket follows its address and the environment."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import boto3  # type: ignore[import-untyped]
import pytest
from moto import mock_aws
from obstore.store import AzureStore, S3Store

from benchmarks.common.servers import free_port
from embedder.errors import FetchError
from embedder.fetch import Fetcher
from index.errors import CollectionError, UnreachableError
from index.storage import Storage, clients
from index.storage.bucket_address import Bucket
from index.storage.clients import object_store
from index.storage.objects import put, read
from index.storage.picture_reader import PictureReader
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
    for cached in (object_store, clients.s3_client, clients._amazons_region):
        cached.cache_clear()
    return monkeypatch


def s3_store(address: str) -> S3Store:
    store = object_store(Bucket.of(address)[0])
    assert isinstance(store, S3Store)
    return store


@pytest.mark.parametrize(
    ("address", "environment", "region"),
    [
        ("s3://mine/a", {"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "us-west-2"}, "eu-west-1"),
        ("s3://mine/a", {"AWS_DEFAULT_REGION": "us-west-2"}, "us-west-2"),
        ("s3://mine/a", {}, "ap-south-1"),
        ("s3://anonymous@public/a", {}, "ap-south-1"),
        ("s3://K:S@yours/a", {}, "ap-south-1"),
        ("s3://K:S@mine/a?region=sa-east-1", {"AWS_REGION": "eu-west-1"}, "sa-east-1"),
        ("s3://mine/a", {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_REGION": "garage"}, "garage"),
    ],
)
def test_the_region_is_of_the_address_or_the_environment_or_looked_up_at_amazon(
    machine: pytest.MonkeyPatch, address: str, environment: dict[str, str], region: str
) -> None:
    with mock_aws():
        location: Any = {"LocationConstraint": "ap-south-1"}
        name = Bucket.of(address)[0].name
        boto3.client("s3", "ap-south-1").create_bucket(Bucket=name, CreateBucketConfiguration=location)
        for variable, value in environment.items():
            machine.setenv(variable, value)
        assert s3_store(address).config.get("region") == region


@pytest.mark.parametrize(("status", "region"), [(403, "eu-west-3"), (404, None)], ids=["private", "missing"])
def test_a_refusal_names_the_region_too(
    machine: pytest.MonkeyPatch, tmp_path: Path, status: int, region: str | None
) -> None:
    reply = Reply(status=status, headers={"x-amz-bucket-region": region} if region else {})
    with scripted(reply) as server:
        (tmp_path / "config").write_text(f"[default]\nendpoint_url = {server.url}\n")  # of boto3 alone
        assert s3_store("s3://mine/a").config.get("region") == region


def test_a_lookup_of_the_region_that_fails_names_the_bucket(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(f"[default]\nendpoint_url = http://127.0.0.1:{free_port()}\n")
    with pytest.raises(UnreachableError, match="s3://mine cannot be reached: Could not connect to the endpoint URL"):
        Storage.open("s3://mine/a").list()


def test_a_profile_sets_the_region_of_another_server(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[default]\nregion = garage\n")
    store = s3_store("s3://mine/a?endpoint_override=127.0.0.1:1")
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


def test_missing_credentials_are_named(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine.delenv("AWS_ACCESS_KEY_ID")
    machine.setenv("AWS_EC2_METADATA_DISABLED", "true")
    machine.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(CollectionError, match="no AWS credentials were found"):
        s3_store("s3://mine/a?region=eu-west-1")


def test_credentials_of_a_role_are_renewed_before_they_expire() -> None:
    """boto3 renews them ten minutes before."""
    provider: Any = s3_store("s3://mine/a?region=eu-west-1").credential_provider
    assert provider()["expires_at"] <= datetime.now(UTC) + timedelta(minutes=10)


SIGNED = "BlobEndpoint=https://shop.blob.{}/;SharedAccessSignature=sv=2024&sig=abc%3D"
EMULATED = "BlobEndpoint=http://127.0.0.1:10000/devstore;AccountKey=a2V5"


@pytest.mark.parametrize(
    ("address", "environment", "account", "endpoint"),
    [
        ("az://shop@images/here", {}, "shop", None),
        ("az://images/here", {"ACCOUNT": "shop"}, "shop", None),
        ("az://images/here", {"CONNECTION_STRING": SIGNED.format("x.test")}, "shop", "https://shop.blob.x.test"),
        ("az://images/here", {"CONNECTION_STRING": EMULATED}, "devstore", "http://127.0.0.1:10000/devstore"),
    ],
    ids=["address", "environment", "server of a signature", "path of an emulator"],
)
def test_the_account_of_azure(
    machine: pytest.MonkeyPatch, address: str, environment: dict[str, str], account: str, endpoint: str | None
) -> None:
    with pytest.raises(CollectionError, match="set AZURE_STORAGE_ACCOUNT"):
        Storage.open("az://images/here")
    for name, value in environment.items():
        machine.setenv(f"AZURE_STORAGE_{name}", value)
    bucket, prefix = Bucket.of(address)
    assert (bucket.user, bucket.name, prefix) == (account, "images", "here")
    store = object_store(bucket)
    assert isinstance(store, AzureStore)
    assert (store.config["account_name"], store.config.get("endpoint")) == (account, endpoint)


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


def test_a_key_without_its_secret_is_refused() -> None:
    message = "expected a secret beside the key, or neither: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    with pytest.raises(CollectionError, match=f"^s3://bucket/a: {message}$"):
        Storage.open("s3://KEY@bucket/a")
    with pytest.raises(FetchError, match=f"^s3://bucket/a.jpg: s3://bucket: {message}$"):
        Fetcher(buckets=PictureReader()).fetch("s3://KEY@bucket/a.jpg")
