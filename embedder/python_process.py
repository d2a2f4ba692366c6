"""Starts a new Python for a module of this package."""

import json
import sys
from typing import Final

# The path is set late, and -P leaves out the working directory: either may have a file named like a module of Python.
_BOOTSTRAP: Final = (
    "import json, sys; sys.path[:], module, arguments = json.loads(sys.argv[1]); "
    "from importlib import import_module; import_module(module).run(*arguments)"
)


def python_command(module: str, *arguments: str | int) -> list[str]:
    """The command of a process that calls the module's function `run`, and imports from where this process does."""
    return [sys.executable, "-P", "-c", _BOOTSTRAP, json.dumps([sys.path, module, arguments])]
