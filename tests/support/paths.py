"""Folders of the project."""

import os
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"


def python_path() -> str:
    """The variable PYTHONPATH with which a process finds the project, and what `conftest.py` put on it."""
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
