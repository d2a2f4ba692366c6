"""A collection may come from anyone, with right digests: it is refused with a message, in bounded time and memory, and
nothing outside its folder is read, changed or made.
"""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.support.collections.every_file import edited, make_every_file, seal
from tests.support.collections.hurts import HURTS
from tests.support.paths import ROOT

_MAX_MEMORY = 900 << 20


class Stranger:
    """A collection that is changed in copies, and a process that uses them."""

    def __init__(self, folder: Path, user: "subprocess.Popen[str]") -> None:
        self._made, self._folder, self._user = folder / "made", folder, user
        make_every_file(self._made)
        self.files = sorted(
            path.relative_to(self._made).as_posix()
            for path in self._made.rglob("*")
            if path.is_file() and path.stat().st_size
        )

    def copy(self) -> Path:
        """A copy of the collection, beside a folder with a secret."""
        root, outside = self._folder / "copy", self._folder / "outside"
        for folder in (root, outside):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self._made, root)
        outside.mkdir()
        (outside / "secret").write_text("secret")
        (outside / "secret").chmod(0o600)
        return root

    def use(self, root: Path, mode: Literal["build", "read"] = "build") -> dict[str, str | None]:
        """For each use of a collection the message with which it was refused; None if it was not."""
        assert self._user.stdin
        assert self._user.stdout
        self._user.stdin.write(f"{mode} {root}\n")
        self._user.stdin.flush()
        outcome: dict[str, Any] = json.loads(self._user.stdout.readline())
        assert outcome["status"] == 0
        assert outcome["traces"] == {}
        assert all(message is None or message.strip() for message in outcome["refused"].values())
        assert outcome["peak"] < _MAX_MEMORY
        secret = self._folder / "outside/secret"
        assert list(secret.parent.iterdir()) == [secret]
        assert (secret.read_text(), secret.stat().st_mode & 0o777) == ("secret", 0o600)
        return outcome["refused"]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stranger]:
    folder = tmp_path_factory.mktemp("stranger")
    command = [sys.executable, "-m", "tests.support.collections.stranger_driver"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "LIKENESS_CACHE_DIR": str(folder / "cache")}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as user:
        yield Stranger(folder, user)
        user.kill()


def test_an_honest_collection_is_used(stranger: Stranger) -> None:
    root = stranger.copy()
    seal(root)
    assert set(stranger.use(root).values()) <= {None}


TABLE = [
    pytest.param(name, marks=[pytest.mark.slow] if number % 16 and "lock" not in name else [])
    for number, name in enumerate(HURTS)
]
LONG = [pytest.mark.long, pytest.mark.timeout(3600)]
HARMLESS = ("model.tiles 2x2", "runs []", "settings.factory")
"""Values of a manifest that only a build may refuse."""


@pytest.mark.parametrize("name", TABLE)
def test_a_collection_made_to_hurt(stranger: Stranger, name: str) -> None:
    root = stranger.copy()
    HURTS[name](root)
    seal(root)
    refused = stranger.use(root)
    if name.endswith("in index/000005/manifest.json") and not name.startswith(HARMLESS):
        assert "index/000005/manifest.json" in (refused["search"] or "")


FUZZ = [
    range(1, 3),
    pytest.param(range(3, 43), marks=[pytest.mark.slow]),
    *(pytest.param(range(n, n + 500), marks=LONG) for n in range(1000, 6000, 500)),
]


@pytest.mark.parametrize("numbers", FUZZ, ids=str)
def test_edited_files_with_right_digests(stranger: Stranger, numbers: range) -> None:
    for number in numbers:
        drawn = random.Random(number)
        path = drawn.choice(stranger.files)
        root = stranger.copy()
        data = (root / path).read_bytes()
        (root / path).unlink()
        (root / path).write_bytes(edited(data, drawn))
        try:
            if not path.endswith("manifest.json"):
                seal(root)
            stranger.use(root, "read" if number % 20 else "build")
        except Exception as error:
            error.add_note(f"case {number}: {path}")
            raise
