"""Commands that free space work on a disk without a free byte: a file system in memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from index.builder.build_index import build_index
from index.collection import Collection, writing
from index.collection.layout import SUPERSEDED
from index.versions.prune import GRACE
from jobs.annotation.annotate import Annotate
from jobs.annotation.predictor import Recipe
from jobs.annotation_spec import AnnotationSpec
from tests.support.collections.hand_made import add_version, rows
from tests.support.paths import python_path

IN_A_FULL_FILE_SYSTEM = """
mount -t tmpfs -o size=4m tmpfs disk || exit 99
cp -a collection disk && cd disk
likeness() { python -P -m likeness "$@"; }
likeness index collection || exit 98  # makes the lock file
dd if=/dev/zero of=fill bs=4k 2>/dev/null
likeness compact collection 2>&1 | grep -q 'No space left' || exit 97
likeness columns collection --drop half
test -e collection/annotations/half && exit 96
likeness prune collection --keep 1 || exit 95
likeness columns collection --drop half || exit 94
likeness columns collection --drop half && exit 93
likeness prune collection --keep 1
"""


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    """Two versions, the older one outdated, and an annotation in the index."""
    collection = Collection.create_or_open(str(tmp_path / "collection"))
    add_version(collection, rows([f"{number:03}" for number in range(300)]))
    recipe = Recipe(
        id="ones",
        fingerprint="f" * 64,
        needs="embedding",
        make=lambda: lambda batch: {"": [1] * len(batch["image_id"])},
    )
    with writing(collection, "annotate") as leased:
        job = Annotate(collection=leased, console=Console(quiet=True), recipe=lambda *_: recipe)
        job.run(AnnotationSpec(name="half", predictor="tests:Ones"))
    build_index(collection, rebuild=True)
    for superseded in Path(collection.location).rglob(SUPERSEDED):
        long_ago = superseded.stat().st_mtime - 2 * GRACE.total_seconds()
        os.utime(superseded, (long_ago, long_ago))
    return collection


@pytest.mark.slow
def test_space_can_be_freed_on_a_full_disk(collection: Collection, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", IN_A_FULL_FILE_SYSTEM],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "PYTHONPATH": python_path()},
        check=False,
    )
    if done.returncode == 99 or "unshare" in done.stderr:
        pytest.skip("no file system can be mounted here")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "there is no annotation half" in done.stderr
    assert "freed" in done.stdout
