"""The names that users import."""

import subprocess
import sys
from pathlib import Path

import pytest

import likeness


@pytest.mark.parametrize("name", dir(likeness))
def test_each_name_is_what_its_module_has(name: str) -> None:
    assert getattr(likeness, name).__name__ == name


def test_a_star_imports_them_all() -> None:
    names: dict[str, object] = {}
    exec("from likeness import *", names)
    assert names.keys() - {"__builtins__"} == {*dir(likeness)}


def test_another_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="'likeness' has no attribute 'Similarity'"):
        _ = likeness.Similarity


def test_a_client_loads_nothing_slow() -> None:
    code = """
import sys
from likeness import ClientError, LikenessClient, RequestRefused, ServerUnreachable
print([name for name in ("faiss", "torch", "ray", "duckdb", "pyarrow", "pandas") if name in sys.modules])
"""
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize("file", ["api.py", "embedder/__init__.py", "index.py", "jobs.py"])
def test_a_module_that_hides_a_package_is_named(tmp_path: Path, file: str) -> None:
    hider = tmp_path / file
    hider.parent.mkdir(exist_ok=True)
    hider.touch()
    if file != "jobs.py":  # which only the command line needs
        (tmp_path / "script.py").write_text("from likeness import LikenessClient")
        assert _last_error(["script.py"], tmp_path) == _hides(hider)
    assert _last_error(["-m", "likeness", "--version"], tmp_path) == _hides(hider)


def _hides(hider: Path) -> str:
    package = hider.parent.name if hider.name == "__init__.py" else hider.stem
    return f"ImportError: {hider} hides the package {package!r} of Likeness: rename it"


def _last_error(arguments: list[str], folder: Path) -> str:
    ran = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    return ran.stderr.splitlines()[-1]
