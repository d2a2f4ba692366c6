"""What tests of several rooms of jobs take: the command line, and a second model."""

import pytest

from tests.support.command_line import Run, command_line
from tests.support.pictures.tiny_checkpoints import save_siglip


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return command_line(monkeypatch, capsys)


@pytest.fixture(scope="session")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of another model than the demo's, whose vectors have another length."""
    folder = tmp_path_factory.mktemp("other").resolve()
    save_siglip(folder)
    return str(folder)
