"""Find the images that look alike: `Likeness` opens a collection, `LikenessClient` asks a server.

`likeness` is also the command line. Names are loaded when they are first used: a client needs neither faiss, torch nor
Ray, which take seconds to load.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from api.client import LikenessClient
    from api.errors import ClientError, RequestRefused, ServerUnavailable, ServerUnreachable
    from api.explore import Likeness
    from api.problems import Problem
    from index.collection import Collection

__all__ = [
    "ClientError",
    "Collection",
    "Likeness",
    "LikenessClient",
    "Problem",
    "RequestRefused",
    "ServerUnavailable",
    "ServerUnreachable",
]

_MODULES = {
    "ClientError": "api.errors",
    "Collection": "index.collection",
    "Likeness": "api.explore",
    "LikenessClient": "api.client",
    "Problem": "api.problems",
    "RequestRefused": "api.errors",
    "ServerUnavailable": "api.errors",
    "ServerUnreachable": "api.errors",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with naming_hidden_package():
        return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__


@contextmanager
def naming_hidden_package() -> Iterator[None]:
    """An ImportError names the user's own module or package that Python finds in place of one of Likeness."""
    try:
        yield
    except (ImportError, AttributeError) as error:
        for package in ("api", "embedder", "index", "jobs"):
            found = (spec := find_spec(package)) and spec.origin
            if found and Path(found).parent != Path(__file__).parents[1] / package:
                raise ImportError(
                    f"{found} hides the package {package!r} of Likeness: rename it", name=package, path=found
                ) from error
        raise
