"""README and the pages in docs are correct: commands and Python run, links resolve, every setting is described."""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from api.build_service import build_service
from api.http.app import create_app
from api.local import running
from api.settings import ServeSettings
from benchmarks.common.servers import free_port
from jobs.demo.collection import make_demo_collection
from likeness.cli.app import app
from tests.support.command_parsers import PROGRAMS, check, shell_lines
from tests.support.paths import ROOT
from tests.support.settings_page import settings_page

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LINKED = [
    *ROOT.glob("*.md"),
    *(page for folder in ("benchmarks", "deploy", "docs") for page in (ROOT / folder).rglob("*.md")),
]
TARGETS = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
SERVER = "http://127.0.0.1:8000"
DEMO = "demo-data/"


def commands(page: Path) -> Iterator[list[str]]:
    """The commands in a page's shell blocks, without variables, pipes and comments."""
    for line in shell_lines(page):
        words: list[str] = []
        for word in [*shlex.split(line, comments=True), "&&"]:
            if word in ("|", "&&"):
                yield words
                words = []
            elif words or not re.fullmatch(r"[A-Z_]+=.*", word):
                words.append(word)


def relative_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


COMMANDS = {tuple(words): relative_name(page) for page in PAGES for words in commands(page) if words}
"""Each command once, with a page that has it."""
ON_DEMO = [
    (page, words) for words, page in COMMANDS.items() if DEMO in shlex.join(words) or f"{SERVER}/search" in words
]
NOT_RUN = [(page, words) for words, page in COMMANDS.items() if words[0] in PROGRAMS and (page, words) not in ON_DEMO]
PYTHON = [(page, text) for page in PAGES for text in re.findall(r"(?ms)^ *```python\n(.*?)^ *```", page.read_text())]


def described(rows: list[tuple[str, tuple[str, ...]]]) -> list[str]:
    return [f"{page}: {shlex.join(words)}" for page, words in rows]


@pytest.mark.parametrize(("page", "words"), NOT_RUN, ids=described(NOT_RUN))
def test_other_commands_parse(page: str, words: tuple[str, ...]) -> None:
    check([*words])


def test_commands_were_found() -> None:
    assert len(NOT_RUN) > 40
    assert len(ON_DEMO) > 10
    assert {"README.md", "docs/search.md", "docs/http.md"} <= {page for page, _ in ON_DEMO}


def test_targets_and_modules_exist() -> None:
    for page in PAGES:
        text = page.read_text()
        for target in re.findall(r"(?:`|^ *|&& )make ([a-z-]+)", text, re.MULTILINE):
            assert target in TARGETS, f"{relative_name(page)}: make {target}"
        for module in re.findall(r"python -m ((?:api|benchmarks|embedder|index|jobs|tests)\.[a-z_.]+[a-z])", text):
            assert find_spec(module), f"{relative_name(page)}: python -m {module}"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a server of a small demo collection, in the current folder as after `make demo`."""
    folder, port = tmp_path_factory.mktemp("clone"), free_port()
    collection = make_demo_collection(folder / DEMO, count=120)
    settings = ServeSettings(collection=collection.location, port=port, allowed_hosts=frozenset({f"127.0.0.1:{port}"}))
    before = Path.cwd()
    os.chdir(folder)
    with closing(build_service(settings)) as service, running(create_app(service), port=port) as url:
        yield url
    os.chdir(before)


@pytest.mark.parametrize(("page", "words"), ON_DEMO, ids=described(ON_DEMO))
def test_commands_on_the_demo_run(page: str, words: tuple[str, ...], demo: str) -> None:
    if words[0] == "curl":
        argv = [word.replace(SERVER, demo) for word in [*words, "--fail-with-body"]]
        done = subprocess.run(argv, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stdout
        assert b'"matches":[{' in done.stdout
    else:
        assert words[0] == "likeness"
        result = CliRunner().invoke(app, words[1:])
        assert result.exit_code == 0, result.output
        assert words[1] != "search" or re.search(r"[a-z]+/\d{4}-", result.output)


@pytest.mark.parametrize(
    ("page", "block"), PYTHON, ids=lambda each: relative_name(each) if isinstance(each, Path) else ""
)
def test_python_runs(page: Path, block: str, demo: str) -> None:
    scope: dict[str, Any] = {}
    exec(block.replace(SERVER, demo), scope)
    if "likeness" in scope:
        scope["likeness"].close()


def test_rows_become_a_data_frame(demo: str) -> None:
    (block,) = (block for page, block in PYTHON if page.name == "python.md" and ".to_pandas().dropna(" in block)
    scope: dict[str, Any] = {}
    exec(block, scope)
    assert len(scope["rows"]) == 119  # the other one is broken on purpose
    assert list(scope["rows"].columns) == ["image_id", "label", "embedding"]
    vectors = scope["vectors"]
    assert (vectors.shape, vectors.dtype) == ((119, 64), np.float32)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)


def test_settings_page_is_up_to_date() -> None:
    text = (ROOT / "docs" / "settings.md").read_text()
    assert text == settings_page(), "run `make docs`"
    assert all(field.description for field in ServeSettings.model_fields.values())


def test_readme_is_short_and_links_to_every_page() -> None:
    text = (ROOT / "README.md").read_bytes()
    assert len(text) <= 10_240
    linked = {target for target, _ in links(text.decode())}
    assert {relative_name(page) for page in (ROOT / "docs").glob("*.md")} - linked == set()


def links(text: str) -> list[tuple[str, str]]:
    """The relative links of a page as path and anchor, of which one may be empty."""
    return re.findall(r"(?:\]\(|src=\")(?![a-z]+:)([^)#\"]*)#?([^)\"]*)", text)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub generates for the headings."""
    text = re.sub(r"(?ms)^ *```.*?^ *```", "", page.read_text())
    headings = re.findall(r"(?m)^#+ (.*)$", text)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKED, ids=relative_name)
def test_links_are_valid(page: Path) -> None:
    for path, anchor in links(page.read_text()):
        target = page.parent / path if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"
