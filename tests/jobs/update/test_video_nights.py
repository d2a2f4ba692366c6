"""Videos night by night: scenes are found by words, unchanged videos are not decoded, changed ones are listed again."""

from pathlib import Path
from typing import Never

import pytest

from api.explore import Likeness
from embedder.fetch import Fetcher
from jobs.file_extensions import checked_extensions
from tests.support.nights.reembed_nights import DEMO, Nights
from tests.support.pictures.sample_images import quarters
from tests.support.pictures.videos import SCENES, draw_scenes, write_video

BOTH = checked_extensions(["images", "videos"])


def fail(*_: object) -> Never:
    raise AssertionError("a video was decoded")


def test_scenes_are_found_by_words_and_a_video_is_decoded_only_if_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "pictures" / "holiday"
    folder.mkdir(parents=True)
    write_video(folder / "clip.mp4", draw_scenes()[:5], seconds=25)
    quarters().save(folder / "a.png")
    nights = Nights(folder.parent, str(tmp_path / "collection"))
    nights.embed(nights.pictures, DEMO, "--extensions", "images,videos")
    with Likeness.open(nights.location, device="cpu") as likeness:
        for number, scene in enumerate(SCENES[:5]):
            best = likeness.search(f"a {scene.pattern} {scene.colour} {scene.shape}", k=1)[0]
            assert best.image_id == f"holiday/clip.mp4#t={5 * number}"
        like = likeness.search(id="holiday/clip.mp4#t=20", k=1)
        assert like[0].image_id != "holiday/clip.mp4#t=20"

    with monkeypatch.context() as patch:
        patch.setattr(Fetcher, "frame_times", fail)
        report = nights.night(extensions=BOTH)
        assert (report.counts.listed, report.counts.unchanged, report.counts.deleted) == (6, 6, 0)
    clip = folder / "clip.mp4"
    clip.rename(clip.with_name("moved.mp4"))
    report = nights.night(extensions=BOTH, max_missing=1)
    assert (report.counts.moved, report.counts.deleted, report.counts.to_embed) == (5, 5, 0)
    write_video(clip.with_name("moved.mp4"), draw_scenes(seed=9)[:3], seconds=15)
    report = nights.night(extensions=BOTH, max_missing=1)
    assert (report.counts.listed, report.counts.deleted) == (4, 2)
    clip.with_name("moved.mp4").write_bytes(clip.with_name("moved.mp4").read_bytes()[:5000])
    report = nights.night(extensions=BOTH, max_missing=1, max_reject_rate=1)
    assert (report.counts.listed, report.counts.refused, report.counts.deleted) == (2, 1, 3)


def test_a_list_that_names_frames_does_not_make_their_video_be_decoded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    write_video(folder / "clip.mp4", draw_scenes()[:3], seconds=15)
    (folder / "l.csv").write_text("uri,k\nclip.mp4#t=5,1\nclip.mp4#t=5.0,2\nclip.mp4#t=7,3\n")
    nights = Nights(folder, str(tmp_path / "collection"))
    nights.embed(nights.pictures, DEMO, "--extensions", "images,videos")
    monkeypatch.setattr(Fetcher, "frame_times", fail)
    report = nights.night(extensions=BOTH)
    assert (report.counts.listed, report.counts.unchanged, report.counts.deleted) == (5, 5, 0)
