"""Python in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT


def python(*arguments: object, folder: Path = ROOT, **environment: str) -> "subprocess.CompletedProcess[str]":
    """This interpreter with these arguments, in a folder; what it prints and how it ends. It can import ours."""
    command = [sys.executable, *map(str, arguments)]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=variables, check=False)
