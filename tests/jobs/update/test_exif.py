"""`--exif`: columns of the time, camera and place of pictures, remembered by the source's runs."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from PIL.ExifTags import GPS

from index.collection import Collection
from index.search import Searcher
from tests.support.nights.reembed_nights import DEMO, Nights
from tests.support.pictures.exif import with_exif
from tests.support.pictures.sample_images import put_pictures

PLACE: dict[int, Any] = {GPS.GPSLatitudeRef: "N", GPS.GPSLatitude: (52.0, 30.0, 0.0)}
PLACE |= {GPS.GPSLongitudeRef: "E", GPS.GPSLongitude: (13.0, 15.0, 0.0)}
NAMES = ["exif_taken", "exif_camera", "exif_latitude", "exif_longitude"]
NOON = [datetime(2024, 5, 31, 12), "Nokia 7", 52.5, 13.25]


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    noon = with_exif("JPEG", "2024:05:31 12:00:00", "Nokia", "7", PLACE)
    pictures = {"noon.jpg": noon, "plain.jpg": with_exif("JPEG", colour="blue")}
    Collection.create_or_open(str(tmp_path / "collection"))
    return Nights(put_pictures(tmp_path / "pictures", pictures), str(tmp_path / "collection"))


def exif(nights: Nights) -> dict[str, list[Any]]:
    rows = nights.collection.live_rows(["image_id", *NAMES]).to_pylist()
    return {str(row["image_id"]): [row[name] for name in NAMES] for row in rows}


def test_coordinates_are_stored_only_on_request_and_the_request_is_remembered(nights: Nights) -> None:
    nights.night(DEMO)
    assert not {*NAMES} & {*nights.collection.live_rows().column_names}
    report = nights.night(DEMO, exif=True)
    assert (report.embedded, exif(nights)) == (2, {"noon.jpg": NOON, "plain.jpg": [None] * 4})
    searcher = Searcher.open(nights.collection)
    (found,) = searcher.search([searcher.vector("plain.jpg")], 10, filter={"exif_latitude": {"$gt": 50}})
    assert [match.metadata["exif_camera"] for match in found] == ["Nokia 7"]
    # Without the option, rows keep their values, also if moved, and new images get them too.
    (nights.pictures / "noon.jpg").rename(nights.pictures / "moved.jpg")
    (nights.pictures / "new.jpg").write_bytes(with_exif("JPEG", "2023:01:01 00:00:00", colour="green"))
    report = nights.night(DEMO, max_missing=1)
    assert (report.embedded, report.counts.unchanged, report.counts.reused) == (1, 1, 1)
    new = [datetime(2023, 1, 1), None, None, None]
    assert exif(nights) == {"moved.jpg": NOON, "plain.jpg": [None] * 4, "new.jpg": new}
    assert nights.night(DEMO).counts.unchanged == 3
    # Removed without the model.
    report = nights.night(DEMO, exif=False)
    assert (report.embedded, report.counts.reused) == (0, 3)
    assert not {*NAMES} & {*nights.collection.live_rows().column_names}
    assert nights.night(DEMO).counts.unchanged == 3


def test_a_part_that_cannot_be_read_is_refused_each_time(nights: Nights) -> None:
    """Not given its earlier row, which says why it could not be read then, and has no columns for EXIF."""
    part = nights.pictures / "part.tar"
    part.write_bytes(b"no tar")
    moved = part.with_suffix(".moved")
    assert nights.night(DEMO, exif=True, index=False, max_reject_rate=1).counts.refused == 1
    part.rename(moved)
    assert nights.night(DEMO, index=False, max_missing=1).counts.deleted == 1
    moved.rename(part)
    counts = nights.night(DEMO, index=False, max_reject_rate=1).counts
    assert (counts.new, counts.refused, counts.reused) == (1, 1, 0)
    assert nights.night(DEMO, index=False, max_reject_rate=1).counts.unchanged == 3
