"""What README says works: its commands parse, every setting is described, and its line for a data frame gives one."""

import re
import shlex
from pathlib import Path

import pytest

from api.settings import ServeSettings
from embedder.fake import FakeEmbedder
from index.collection import Collection
from tests.deploy.test_deploy_commands import check
from tests.support.collections.small_collection import COLOURS, PLAIN, make_collection
from tests.support.paths import ROOT

README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"(?m)^likeness [a-z].*$", "".join(re.findall(r"(?ms)^```\w*\n(.*?)^```", README)))


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_right(command: str) -> None:
    check(shlex.split(command, comments=True))


def test_commands_were_found() -> None:
    assert len(COMMANDS) > 10


def test_every_setting_of_a_server_is_described() -> None:
    pages = README + (ROOT / "deploy" / "serving.md").read_text()
    described = set(re.findall(r"LIKENESS_[A-Z_]+", pages))
    assert {f"LIKENESS_{name.upper()}" for name in ServeSettings.model_fields} - described == set()


def test_rows_become_a_data_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_collection(tmp_path / "my-collection", PLAIN, FakeEmbedder())
    (line,) = re.findall(r"(?m)^Collection\.open.*to_pandas\(\)\.dropna\(\)$", README)
    frame = eval(line, {"Collection": Collection})
    assert list(frame["image_id"]) == sorted(COLOURS)


def test_files_that_it_names_are_there() -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", README):
        assert (ROOT / target).exists(), target
