"""A user's own class, named `module:Class`: how it is imported, constructed and identified."""

import hashlib
import importlib
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Self

from embedder.errors import ModelError
from embedder.freed_memory import keep_freed_memory
from embedder.images import CropSpec

CLASS_NAME: Final = r"^[\w.]+:\w+$"


def is_class_name(name: str) -> bool:
    """Whether the name has the form `module:Class`, which no hub id or absolute path has."""
    return re.match(CLASS_NAME, name) is not None


def what_changed(name: str, other: str) -> str:
    """For messages about two models that differ: what may have changed if they are one class; else nothing."""
    if name != other or not is_class_name(name):
        return ""
    return " (the class has changed: its dim, crop or `version`, or without a `version` its module's source code)"


def append_to_path(folder: str) -> None:
    """Makes a folder's modules importable, after all others."""
    if folder not in sys.path:
        sys.path.append(folder)


@dataclass(frozen=True)
class PythonClass:
    """`name` is searched on Python's path, then in `folder`. It pickles as a name, which other processes import."""

    name: str
    folder: str

    @classmethod
    def in_working_directory(cls, name: str) -> Self:
        """Searched in the working directory last."""
        return cls(name, str(Path.cwd()))

    def find(self) -> Any:
        """Imports the class, which runs its module's code the first time. Raises ModelError."""
        append_to_path(self.folder)
        module, _, attribute = self.name.partition(":")
        try:
            if not is_class_name(self.name):
                raise ValueError("malformed name")
            imported = importlib.import_module(module)
            if not hasattr(imported, attribute):  # perhaps another module of that name comes first
                raise AttributeError(f"there is no {attribute} in {getattr(imported, '__file__', None) or module}")
            return getattr(imported, attribute)
        except (Exception, SystemExit) as error:  # the module's own code may raise anything
            raise ModelError(
                f"{self.name} cannot be imported ({type(error).__name__}: {error}): expected module:Class, with the "
                f"module on Python's path or in {self.folder}. Set PYTHONPATH to the module's folder, or run the "
                "command there"
            ) from error

    def construct(self) -> Any:
        """An instance, made without arguments. Raises ModelError."""
        user_class = self.find()
        keep_freed_memory()
        try:
            return user_class()
        except (Exception, SystemExit) as error:
            raise ModelError(
                f"{self.name} cannot be constructed ({type(error).__name__}: {error}): expected a class that takes no "
                "arguments"
            ) from error

    def crop(self) -> CropSpec:
        """The crop that its attributes `side` (default 224) and `shortest_edge` (None) ask for. Raises ModelError."""
        user_class = self.find()
        try:
            side, shortest_edge = getattr(user_class, "side", 224), getattr(user_class, "shortest_edge", None)
            if type(side) is not int or type(shortest_edge) not in (int, type(None)):
                raise TypeError(f"expected whole numbers, got side {side!r} and shortest_edge {shortest_edge!r}")
            return CropSpec(side=side, shortest_edge=shortest_edge)
        except (TypeError, ValueError) as error:
            raise ModelError(f"{self.name}: {error}") from error

    def fingerprint(self, settings: object) -> str:
        """SHA-256 of its name, `settings` and `version`; without a `version`, of its module's source in its place.

        Raises ModelError if it has neither.
        """
        user_class = self.find()
        version = getattr(user_class, "version", None)
        contents = _source(sys.modules[user_class.__module__]) if version is None else str(version).encode()
        if contents is None:
            raise ModelError(
                f"{self.name} has no source file: give the class a `version`, and change it whenever its results change"
            )
        return hashlib.sha256(b"\0".join([self.name.encode(), repr(settings).encode(), contents])).hexdigest()


@cache
def _source(module: ModuleType) -> bytes | None:
    """Read once, because the imported module runs even if its file changes later."""
    file = getattr(module, "__file__", None)
    return Path(file).read_bytes() if file else None
