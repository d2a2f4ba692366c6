"""Commands and programs that used a model end with their own exit code, and leave no thread that holds it."""

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final
from uuid import uuid4

import pytest
import requests

from benchmarks.common.servers import serving
from embedder.models.checkpoint import DEMO_MODEL
from embedder.models.clip import ClipEmbedder
from embedder.models.load import load_embedder
from tests.support.collections.small_collection import PLAIN, make_collection
from tests.support.pictures.tiny_checkpoints import save_deep_clip
from tests.support.processes import python

# Python waits for other threads before it calls what is registered here.
LEFT_AT_EXIT: Final = (
    "import atexit, threading\n"
    "atexit.register(lambda: print('threads:', [t.name for t in threading.enumerate()], flush=True))\n"
)
OPEN_WITH_FAKE: Final = (
    LEFT_AT_EXIT + "import sys, time\n"
    "from api.explore import Likeness\n"
    "from tests.support.fake_embedder import FakeEmbedder\n"
    "from index.collection import Collection\n"
    "from index.search import Searcher\n"
    "class Model(FakeEmbedder):\n"
    "    def __del__(self, sleep=time.sleep):\n"
    "        sleep(0.3)\n"  # a thread that is killed meanwhile prints nothing
    "        print('freed', flush=True)\n"
    "def opened():\n"
    "    return Likeness(Searcher.open(Collection.open(sys.argv[1])), Model)\n"
)
SEARCH: Final = "likeness = opened()\nprint(len(likeness.search('a red star')))\n"
CLOSE_AND_SEARCH: Final = "likeness.close()\nlikeness.close()\nprint(len(likeness.search('blue')))"
SERVICE: Final = (
    "from api.build_service import build_service\n"
    "from api.settings import ServeSettings\n"
    "settings = ServeSettings(collection=sys.argv[1], swap_interval_s=0.1)\n"
    "service = build_service(settings, load_model=lambda _: FakeEmbedder())\n"
    "service.live.start()"
)


WITH: Final = "with opened() as likeness:\n    print(len(likeness.search('a red star')))\ndel likeness"
QUICK: Final[dict[str, tuple[str, int, list[str]]]] = {
    "exception": (SEARCH + "raise ValueError('mine')", 1, ["3"]),
    "closed and loaded again": (SEARCH + CLOSE_AND_SEARCH, 0, ["3", "3", "freed"]),
    "a service": (SERVICE, 0, []),
}
LONG: Final[dict[str, tuple[str, int, list[str]]]] = {
    "closed": (SEARCH + "likeness.close()", 0, ["3", "freed"]),
    "with": (WITH, 0, ["3", "freed"]),
    "dropped": ("print(len(opened().search('a red star')))", 0, ["3", "freed"]),
    "sys.exit": (SEARCH + "sys.exit(7)", 7, ["3"]),
}


@pytest.mark.parametrize(
    ("program", "code", "printed"),
    [
        *(pytest.param(*each, id=name) for name, each in QUICK.items()),
        *(pytest.param(*each, id=name, marks=pytest.mark.long) for name, each in LONG.items()),
    ],
)
def test_a_program_ends_with_its_own_code_and_leaves_no_thread(
    plain: Path, program: str, code: int, printed: list[str]
) -> None:
    done = python("-c", OPEN_WITH_FAKE + program, str(plain))
    assert done.returncode == code, done.stderr
    before, threads, _ = done.stdout.partition("threads: ['MainThread']\n")
    assert (sorted(before.splitlines()), bool(threads)) == (printed, True)
    assert done.stderr == "" or done.stderr.endswith("ValueError: mine\n")


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a collection `deep`, whose model takes torch long to free, and `c`, whose model is converted."""
    folder = tmp_path_factory.mktemp("deep")
    save_deep_clip(folder / "model")
    make_collection(folder / "deep", PLAIN, ClipEmbedder.load(str(folder / "model"), device="cpu"))
    make_collection(folder / "c", PLAIN, load_embedder(str(DEMO_MODEL), device="cpu"))
    (folder / "red.png").write_bytes(PLAIN["red.png"])
    return folder


COMMAND: Final = LEFT_AT_EXIT + "from likeness.__main__ import main\nmain()"
PROGRAM: Final = LEFT_AT_EXIT + (
    "from api.explore import Likeness\n"
    "from embedder.models import load\n"
    "load.conversion_folder = lambda *_, **__: None\n"  # so that torch is used
)
SEARCHES: Final = "print(len({}.search('a red star')))"
PROGRAMS: Final[dict[str, tuple[str, ...]]] = {
    "by words": (COMMAND, "search", "c", "--text", "a red star"),
    "by a picture": (COMMAND, "search", "c", "red.png"),
    "closed": (PROGRAM + "with Likeness.open('deep') as opened:\n    " + SEARCHES.format("opened"),),
    "dropped": (PROGRAM + SEARCHES.format("Likeness.open('deep')"),),
    "forgotten": (PROGRAM + "likeness = Likeness.open('deep')\n" + SEARCHES.format("likeness"),),
}


def run_to_its_end(deep: Path, kind: str) -> None:
    """Run a program with a real model, and check how it ends."""
    if kind == "served":
        stop_a_server(deep)
        return
    done = python("-c", *PROGRAMS[kind], folder=deep)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "threads: ['MainThread']"


def stop_a_server(deep: Path) -> None:
    """Send SIGTERM to a server that answers."""
    log = deep / f"log-{uuid4()}"
    with serving(str(deep / "c"), log, "--local", swap_interval_s=0.05) as server:
        answer = requests.post(f"{server.url}/search", json={"text": "a red star"}, timeout=120)
        assert len(answer.json()["matches"]) == 3
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(120) == 130, log.read_text()
    assert "terminate" not in log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["by words", "served"])
def test_real_models_leave_no_thread_at_exit(deep: Path, kind: str) -> None:
    run_to_its_end(deep, kind)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("kind", [*PROGRAMS, "served"])
def test_no_run_is_aborted_at_its_end(deep: Path, kind: str, part: int) -> None:
    """Ten runs, two at a time: 240 in all, 40 of each kind."""
    with ThreadPoolExecutor(2) as pool:
        for _ in pool.map(lambda _: run_to_its_end(deep, kind), range(10)):
            pass
