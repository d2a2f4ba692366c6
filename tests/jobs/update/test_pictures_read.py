"""What a job reads of pictures: EXIF as columns, and pictures up to `--max-pixels`."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from PIL.ExifTags import GPS

from embedder.images.exif import EXIF_VERSION
from index.collection import Collection
from index.collection.records.run_manifest import RunSettings
from index.search import Searcher
from tests.support.collections.rejects_and_checks import list_rejects
from tests.support.listings import write_files
from tests.support.nights.reembed_nights import DEMO, Nights
from tests.support.pictures.exif import with_exif
from tests.support.pictures.sample_images import encode, quarters

PLACE: dict[int, Any] = {GPS.GPSLatitudeRef: "N", GPS.GPSLatitude: (52.0, 30.0, 0.0)}
PLACE |= {GPS.GPSLongitudeRef: "E", GPS.GPSLongitude: (13.0, 15.0, 0.0)}
NAMES = ["exif_taken", "exif_camera", "exif_latitude", "exif_longitude"]
NOON = [datetime(2024, 5, 31, 12), "Nokia 7", 52.5, 13.25]


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    noon = with_exif("JPEG", "2024:05:31 12:00:00", "Nokia", "7", PLACE)
    pictures = {"noon.jpg": noon, "plain.jpg": with_exif("JPEG", colour="blue")}
    Collection.create_or_open(str(tmp_path / "collection"))
    return Nights(write_files(tmp_path / "pictures", pictures), str(tmp_path / "collection"), index=False)


def exif(nights: Nights) -> dict[str, list[Any]]:
    rows = nights.collection.live_rows(["image_id", *NAMES]).to_pylist()
    return {str(row["image_id"]): [row[name] for name in NAMES] for row in rows}


def test_coordinates_are_stored_only_on_request_and_the_request_is_remembered(nights: Nights) -> None:
    nights.night(DEMO)
    assert not {*NAMES} & {*nights.collection.live_rows().column_names}
    report = nights.night(DEMO, exif=True, index=True)
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


def test_pictures_are_read_again_for_what_an_earlier_release_did_not_read(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert RunSettings.model_validate({"exif": True}).exif == 1  # as earlier releases wrote it
    assert nights.night(DEMO, exif=True).embedded == 2
    for module in ("jobs.update", "jobs.planning.plan"):
        monkeypatch.setattr(f"{module}.EXIF_VERSION", EXIF_VERSION + 1)
    assert nights.night(DEMO).embedded == 2
    assert nights.night(DEMO, exif=True).counts.unchanged == 2


def test_a_part_that_cannot_be_read_is_refused_each_time(nights: Nights) -> None:
    """Not given its earlier row, which says why it could not be read then, and has no columns for EXIF."""
    part = nights.pictures / "part.tar"
    part.write_bytes(b"no tar")
    moved = part.with_suffix(".moved")
    assert nights.night(DEMO, exif=True, max_reject_rate=1).counts.refused == 1
    part.rename(moved)
    assert nights.night(DEMO, max_missing=1).counts.deleted == 1
    moved.rename(part)
    counts = nights.night(DEMO, max_reject_rate=1).counts
    assert (counts.new, counts.refused, counts.reused) == (1, 1, 0)
    assert nights.night(DEMO, max_reject_rate=1).counts.unchanged == 3


def test_a_raised_limit_accepts_what_was_rejected_before(tmp_path: Path) -> None:
    pictures = {"large.png": encode(quarters(100, 80), "png"), "small.png": encode(Image.new("RGB", (40, 40)), "png")}
    Collection.create_or_open(str(tmp_path / "collection"))
    nights = Nights(write_files(tmp_path / "pictures", pictures), str(tmp_path / "collection"), index=False)
    report = nights.night(DEMO, max_pixels=7_999, max_reject_rate=1)
    assert (report.embedded, report.rejected, report.failed) == (1, 0, 1)
    [reject] = list_rejects(nights.collection)
    assert (reject["image_id"], reject["error_reason"]) == ("large.png", "too_many_pixels")
    advice = "shrink it, or raise --max-pixels (max_pixels in a job's file)"
    assert reject["error_message"] == f"the picture has 100 × 80 = 8,000 pixels, the limit is 7,999; {advice}"
    assert nights.night(DEMO, max_pixels=7_999, max_reject_rate=1).embedded == 0
    report = nights.night(DEMO, max_pixels=8_000)
    assert (report.embedded, report.failed) == (1, 0)
    assert nights.night(DEMO, max_pixels=8_000).counts.unchanged == 2


def test_a_large_plan_with_little_on_it_is_accepted_with_a_raised_limit(tmp_path: Path) -> None:
    plan = encode(Image.new("1", (8_000, 6_000)), "png")  # so few bytes that it may be made to fill memory
    Collection.create_or_open(str(tmp_path / "collection"))
    pictures = {"plan.png": plan, "small.png": encode(Image.new("RGB", (40, 40)), "png")}
    nights = Nights(write_files(tmp_path / "pictures", pictures), str(tmp_path / "collection"), index=False)
    assert nights.night(DEMO, max_reject_rate=1).failed == 1
    [reject] = list_rejects(nights.collection)
    assert reject["error_reason"] == "decompression_bomb"
    assert reject["error_message"].endswith(
        "; shrink it, or raise --max-pixels above 150,000,000 (max_pixels in a job's file)"
    )
    report = nights.night(DEMO, max_pixels=150_000_001)
    assert (report.embedded, report.failed) == (1, 0)
