"""What tests of several rooms of jobs take: the command line, a collection, a bucket, a second model."""

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from index.collection import Collection
from tests.support.collections.s3_server import Bucket
from tests.support.command_line import Run, command_line
from tests.support.pictures.tiny_checkpoints import save_siglip


@pytest.fixture(scope="session", autouse=True)
def kept_decoders() -> Iterator[None]:
    """Jobs leave their decoding processes to the next test: starting them takes half as long as the rest of a job."""
    with patch("jobs.embedding.here.stop_decoders", lambda _: None):
        yield


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return command_line(monkeypatch, capsys)


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    """An empty one."""
    return Collection.create_or_open(str(tmp_path / "collection"))


@pytest.fixture
def store(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A bucket whose server the environment names."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.endpoint)
    return bucket


@pytest.fixture(scope="session")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of another model than the demo's, whose vectors have another length."""
    folder = tmp_path_factory.mktemp("other").resolve()
    save_siglip(folder)
    return str(folder)
