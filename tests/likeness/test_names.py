"""The names that users import."""

import subprocess
import sys

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
