"""How long `likeness serve --local` takes to come up with the demo model."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from api.errors import StartError
from api.local import run_local
from api.search.service import SearchService
from api.settings import ServeSettings
from embedder.fake import FakeEmbedder
from tests.support.collections.small_collection import PLAIN, make_collection
from tests.support.paths import ROOT


def test_no_garbage_is_looked_for_while_a_server_loads() -> None:
    enabled = []

    def compose(settings: ServeSettings) -> SearchService:
        enabled.append(gc.isenabled())
        raise StartError("enough")

    with pytest.raises(StartError, match="enough"):
        run_local(ServeSettings(collection="c", port=0), compose=compose)
    assert (enabled, gc.isenabled()) == ([False], True)


def test_a_first_search_does_not_import_pandas(tmp_path: Path) -> None:
    """Half a second, for nothing that a search needs: Arrow asks for it when it is given arrays."""
    make_collection(tmp_path / "c", PLAIN, FakeEmbedder())
    script = (
        "import sys; from index.collection import Collection; from index.search import Searcher; "
        "searcher = Searcher.open(Collection.open(sys.argv[1])); "
        "print(len(searcher.search([[1.0] * searcher.dim], 10)[0]), 'pandas' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "c")],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert done.stdout == "3 False\n"
