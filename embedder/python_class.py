"""A class of the user's own, named `module:Class`: how it is found, constructed and told apart from another one."""

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
from embedder.images import CropSpec

CLASS_NAME: Final = r"^[\w.]+:\w+$"


def is_class_name(name: str) -> bool:
    """Whether it is written `module:Class`, as no hub id and no absolute path is."""
    return re.match(CLASS_NAME, name) is not None


def look_in(folder: str) -> None:
    """Let modules of a folder be imported too, after all others."""
    if folder not in sys.path:
        sys.path.append(folder)


@dataclass(frozen=True)
class PythonClass:
    """`name` is looked for on Python's path, then in `folder`. Other processes find it anew: it pickles by name."""

    name: str
    folder: str

    @classmethod
    def here(cls, name: str) -> Self:
        """Importable from the working directory too."""
        return cls(name, str(Path.cwd()))

    def find(self) -> Any:
        """The class. Runs its module's code, if it is not imported yet. Raises ModelError."""
        look_in(self.folder)
        module, _, attribute = self.name.partition(":")
        try:
            if not is_class_name(self.name):
                raise ValueError("there is no module, colon and name")
            imported = importlib.import_module(module)
            if not hasattr(imported, attribute):  # perhaps another module of that name, which comes first
                raise AttributeError(f"there is no {attribute} in {getattr(imported, '__file__', None) or module}")
            return getattr(imported, attribute)
        except (Exception, SystemExit) as error:  # the module's own code runs
            raise ModelError(
                f"{self.name} cannot be imported ({type(error).__name__}: {error}): expected module:Class, with the "
                f"module on Python's path or in {self.folder}. Set PYTHONPATH to the folder that has it, or run the "
                "command there"
            ) from error

    def construct(self) -> Any:
        """An instance, made without arguments. Raises ModelError."""
        found = self.find()
        try:
            return found()
        except (Exception, SystemExit) as error:
            raise ModelError(
                f"{self.name} cannot be constructed ({type(error).__name__}: {error}): expected a class that takes no "
                "arguments"
            ) from error

    def crop(self) -> CropSpec:
        """By its `side` (224), and `shortest_edge` (None: pictures are squashed whole). Raises ModelError."""
        found = self.find()
        try:
            return CropSpec(side=getattr(found, "side", 224), shortest_edge=getattr(found, "shortest_edge", None))
        except (TypeError, ValueError) as error:
            raise ModelError(f"{self.name}: {error}") from error

    def fingerprint(self, settings: object) -> str:
        """SHA-256 of its name, of `settings`, and of its `version`; if it has none, of its module's source.

        Raises ModelError when there is neither.
        """
        found = self.find()
        version = getattr(found, "version", None)
        contents = _source(sys.modules[found.__module__]) if version is None else str(version).encode()
        if contents is None:
            raise ModelError(
                f"{self.name} has no source file: give the class a version, which changes with what it returns"
            )
        return hashlib.sha256(b"\0".join([self.name.encode(), repr(settings).encode(), contents])).hexdigest()


@cache
def _source(module: ModuleType) -> bytes | None:
    """Read once: what runs is the module as it was imported, not what its file has become since."""
    file = getattr(module, "__file__", None)
    return Path(file).read_bytes() if file else None
