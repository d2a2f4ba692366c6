"""Tiny checkpoints."""

import shutil
from pathlib import Path

import pytest

from tests.support.pictures.tiny_checkpoints import save_clip, save_dinov2, save_siglip


@pytest.fixture(scope="package")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder of each family, which tests must not change."""
    root = tmp_path_factory.mktemp("checkpoints")
    families = {"clip": save_clip, "siglip": save_siglip, "dinov2": save_dinov2}
    for name, save in families.items():
        save(root / name)
    return {name: root / name for name in families}


@pytest.fixture
def copied(checkpoints: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of the CLIP checkpoint, which tests may change."""
    return Path(shutil.copytree(checkpoints["clip"], tmp_path / "copy"))
