"""Tiles, night by night: made when a picture is decoded, set for the collection, and stored with its row."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from embedder.images.decode import decode_image
from index.collection import Collection
from index.search import Searcher
from jobs.errors import OtherModelError
from tests.support.nights.reembed_nights import BROKEN, DEMO, PRECISION, Nights, load_once

BOXES = ((0, 0, 0.55, 0.55), (0.45, 0, 0.55, 0.55), (0, 0.45, 0.55, 0.55), (0.45, 0.45, 0.55, 0.55))


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for number in range(6):
        pixels = np.random.default_rng(number).integers(0, 256, (6, 8, 3), np.uint8)
        Image.fromarray(pixels).resize((240, 180), Image.Resampling.NEAREST).save(pictures / f"{number}.png")
    (pictures / "broken.jpg").write_bytes(BROKEN)
    return Nights(pictures, str(tmp_path / "collection"))


def tiles_of(collection: Collection) -> dict[str, object]:
    rows = collection.live_rows(["image_id", "embedding", "tiles"]).to_pylist()
    return {row["image_id"]: row["tiles"] for row in rows if row["embedding"]}


def test_a_picture_is_decoded_once_and_its_tiles_are_its_crops(nights: Nights) -> None:
    nights.night(DEMO, tiles="2x2", max_reject_rate=0.2, index=False)
    assert sorted(nights.embedded[-1]) == [*(f"{number}.png" for number in range(6)), "broken.jpg"]
    rows = nights.collection.live_rows(["image_id", "embedding", "tiles"]).to_pylist()
    model = load_once(DEMO)
    for row in rows[:-1]:
        data = (nights.pictures / row["image_id"]).read_bytes()
        crops = [model.crop, *(replace(model.crop, region=box) for box in BOXES)]
        expected = model.embed_images(np.stack([decode_image(data, crop).pixels for crop in crops]))
        np.testing.assert_allclose(
            np.array([row["embedding"], *np.split(np.array(row["tiles"]), 4)]), expected, atol=PRECISION
        )
    assert rows[-1] == {"image_id": "broken.jpg", "embedding": None, "tiles": None}


def test_the_collection_remembers_its_tiles(nights: Nights) -> None:
    nights.night(DEMO, tiles="2x2", max_reject_rate=0.2, index=False)
    before = tiles_of(nights.collection)
    (nights.pictures / "0.png").rename(nights.pictures / "moved.png")
    (nights.pictures / "1.png").unlink()
    Image.new("RGB", (50, 90), "red").save(nights.pictures / "new.png")
    report = nights.night(max_missing=1, max_reject_rate=0.2)
    assert (report.counts.reused, nights.embedded[-1]) == (1, ["new.png"])
    after = tiles_of(nights.collection)
    assert after.pop("new.png")
    assert after == {"moved.png": before["0.png"], **{name: before[name] for name in list(before)[2:]}}
    assert Searcher.open(nights.collection).ntotal == 6
    with pytest.raises(OtherModelError, match="with tiles 2x2, not with tiles 3x3"):
        nights.embed(None, DEMO, "--tiles", "3x3")
    nights.embed(None, DEMO, "--max-reject-rate", "0.2")
    report = nights.night(tiles="2x1", max_reject_rate=0.2)
    assert (report.counts.other_model, report.embedded) == (7, 6)
    assert {len(tiles) for tiles in tiles_of(nights.collection).values()} == {2 * 64}  # type: ignore[arg-type]
    assert {match.box for match in Searcher.open(nights.collection).search(np.eye(1, 64), 6)[0]} <= {
        *(None, (0.0, 0.0, 0.55, 1.0), (0.45, 0.0, 0.55, 1.0))
    }
