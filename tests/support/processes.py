"""Runs Python in a new process."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT, python_path


def python(*arguments: object, folder: Path = ROOT, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run this interpreter in a folder, with the project importable; returns output and exit code."""
    command = [sys.executable, *map(str, arguments)]
    variables = {**os.environ, "PYTHONPATH": python_path(), **environment}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=variables, check=False)
