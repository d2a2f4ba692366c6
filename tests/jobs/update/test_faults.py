"""Jobs that are killed without warning, at random moments, and run again."""

import hashlib
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import psutil
import pytest

from benchmarks.common.waiting import eventually
from index.collection import Collection
from jobs.demo.gallery import Gallery, make_gallery
from tests.support.nights.fake_job import assert_gallery_is_embedded, crops_of
from tests.support.nights.fault_driver import BLOCK
from tests.support.nights.progress import await_random_moment, pictures_so_far
from tests.support.paths import ROOT

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

DRIVER = ("-m", "tests.support.nights.fault_driver")
VICTIMS = ("decode_images", "EmbedImages", "driver")  # the driver last, as its death costs a start of Ray
ON_RAY, HERE = tuple((victim, "ray") for victim in VICTIMS), (("driver", "local"), ("decoder_worker", "local"))
CROSSWISE = (("driver", "local"), ("driver", "ray"))


class Job:
    """A running driver and its child processes."""

    def __init__(self, source: Path, collection: Path, log: Path, on: str) -> None:
        command = [sys.executable, *DRIVER, *map(str, (source, collection, log)), on]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT)

    def kill(self, victim: str) -> bool:
        """SIGKILL the driver or a worker of this stage; False if there is none now."""
        if victim == "driver":
            self.process.kill()
            self.process.wait()
            return True
        for child in psutil.Process(self.process.pid).children(recursive=True):
            try:
                title = " ".join(child.cmdline())
                if victim in title:
                    os.kill(child.pid, signal.SIGKILL)
                    return True
            except (psutil.Error, ProcessLookupError):
                continue
        return False


@pytest.fixture(scope="module")
def gallery(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    """As many pictures as its parameter says."""
    return make_gallery(tmp_path_factory.mktemp("pictures"), count=request.param)


@pytest.mark.parametrize(
    ("victims", "gallery"),
    [
        (ON_RAY, 300),
        (HERE, 300),
        pytest.param(ON_RAY * 3, 900, marks=pytest.mark.long),
        pytest.param(CROSSWISE * 5, 900, marks=pytest.mark.long),
    ],
    indirect=["gallery"],
)
def test_however_often_a_job_is_killed_every_good_image_is_embedded_once(
    tmp_path: Path, victims: tuple[tuple[str, str], ...], gallery: Gallery
) -> None:
    rng = random.Random(20261121)
    log = tmp_path / "log"
    collection_folder = tmp_path / "collection"
    job: Job | None = None
    for victim, on in victims:
        if job is None or job.process.poll() is not None:
            job = Job(gallery.folder, collection_folder, log, on)
        if victim != "decode_images":  # all may be decoded long before the last picture is embedded
            await_random_moment(job.process, lambda: pictures_so_far(log), rng, steps=60)
        eventually(partial(job.kill, victim), f"there is a process of {victim} to kill", 120)
    if job is None or job.process.poll() is not None:
        job = Job(gallery.folder, collection_folder, log, "local")
    assert job.process.wait(timeout=300) == 0

    assert_gallery_is_embedded(Collection.open(str(collection_folder)), gallery)
    lines = Counter(log.read_text().splitlines())
    good = {hashlib.sha256(crop.tobytes()).hexdigest() for crop in crops_of(gallery).values()}
    assert good == set(lines), "expected exactly the source's pictures to be embedded"
    # Killing the driver or an actor costs at most the block that it embeds and the one that is written meanwhile;
    # killing a decoding worker costs none.
    costly = sum("decode" not in victim for victim, _ in victims)
    assert sum(lines.values()) - len(gallery.exhibits) <= costly * 2 * BLOCK
