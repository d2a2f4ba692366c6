"""`--max-pixels`: how large the user's own pictures may be."""

from pathlib import Path

from PIL import Image

from index.collection import Collection
from tests.support.collections.rejects import list_rejects
from tests.support.nights.reembed_nights import DEMO, Nights
from tests.support.pictures.sample_images import encode, put_pictures, quarters


def test_a_raised_limit_accepts_what_was_rejected_before(tmp_path: Path) -> None:
    pictures = {"large.png": encode(quarters(100, 80), "png"), "small.png": encode(Image.new("RGB", (40, 40)), "png")}
    Collection.create_or_open(str(tmp_path / "collection"))
    nights = Nights(put_pictures(tmp_path / "pictures", pictures), str(tmp_path / "collection"))
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
    nights = Nights(put_pictures(tmp_path / "pictures", pictures), str(tmp_path / "collection"))
    assert nights.night(DEMO, max_reject_rate=1).failed == 1
    [reject] = list_rejects(nights.collection)
    assert reject["error_reason"] == "decompression_bomb"
    assert reject["error_message"].endswith(
        "; shrink it, or raise --max-pixels above 150,000,000 (max_pixels in a job's file)"
    )
    report = nights.night(DEMO, max_pixels=150_000_001)
    assert (report.embedded, report.failed) == (1, 0)
