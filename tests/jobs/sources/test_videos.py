"""Frames of videos: which are listed, how they are named and read, and broken videos."""

import io
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.video.frame import PictureType
from PIL import Image

from embedder.errors import ImageError, Rejected
from embedder.fetch import Fetcher, video_process
from index.storage.picture_reader import PictureReader
from jobs.errors import SourceError
from jobs.file_extensions import checked_extensions
from jobs.sources import list_videos
from jobs.sources.list_images import left_out_warning
from tests.support.collections.s3_server import Bucket
from tests.support.listings import list_images, write_files
from tests.support.pictures.sample_images import corner_error, quarters
from tests.support.pictures.videos import draw_scenes, write_video

BOTH = checked_extensions(["images", "videos"])
FETCHER = Fetcher()
STARTS = [5.0 * n for n in range(12)]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(tmp_path_factory.mktemp("videos") / "clip.mp4", draw_scenes())


def frame(uri: str | None) -> Image.Image:
    return Image.open(io.BytesIO(FETCHER.fetch(str(uri))))


def test_a_videos_scenes_are_listed_and_each_is_read_by_its_name(clip: Path) -> None:
    quarters().save(clip.parent / "a.png")
    listing = list_images(str(clip.parent), extensions=BOTH)
    names = [f"clip.mp4#t={start:g}" for start in STARTS]
    assert listing["image_id"].to_pylist() == ["a.png", *names]
    assert listing["uri"].to_pylist()[1:] == [f"{clip.parent}/{name}" for name in names]
    assert listing["label"].to_pylist() == [None] * 13
    assert listing["size"].to_pylist()[1:] == [clip.stat().st_size] * 12
    for uri, scene in zip(listing["uri"].to_pylist()[1:], draw_scenes(), strict=True):
        assert np.abs(np.asarray(frame(uri)).astype(int) - np.asarray(scene)).mean() < 8
    assert FETCHER.fetch(f"{clip}#t=5") == Fetcher().fetch(f"{clip}#t=5")


def test_a_list_adds_its_columns_to_the_frames_that_it_names(clip: Path, tmp_path: Path) -> None:
    (tmp_path / "clip.mp4").symlink_to(clip)
    named = {"clip.mp4#t=5": 1, "./clip.mp4#t=10.0": 2, f"file://{tmp_path}/clip.mp4#t=015": 3, "clip.mp4#t=2.5": 4}
    rows = "".join(f"{uri},{k}\n" for uri, k in [*named.items(), ("clip.mp4#t=5.00", 5)])
    (tmp_path / "l.csv").write_text(f"file_name,k\n{rows}")
    listing = list_images(str(tmp_path), extensions=BOTH)
    found = {row["image_id"]: (row["uri"], row["k"], row["size"]) for row in listing.to_pylist()}
    size, prefix = clip.stat().st_size, f"{tmp_path}/clip.mp4#t="
    ks = {5: 1, 10: 2, 15: 3}
    expected = {f"clip.mp4#t={t:g}": (f"{prefix}{t:g}", ks.get(int(t)), size) for t in STARTS}
    expected["clip.mp4#t=5#2"] = f"{prefix}5", 5, size
    assert found == {**expected, f"{prefix}2.5": (f"{prefix}2.5", 4, None)}
    assert listing.num_rows == len(STARTS) + 2


@pytest.mark.parametrize(
    ("codec", "ending", "options"),
    [
        ("mpeg4", "avi", {}),
        ("libvpx", "webm", {"deadline": "realtime", "cpu-used": "8"}),
        ("libx264", "mkv", {"x264-params": "keyint=infinite:scenecut=0"}),  # one keyframe
    ],
)
def test_scenes_are_found_within_two_seconds(codec: str, ending: str, options: dict[str, Any], tmp_path: Path) -> None:
    path = write_video(tmp_path / f"clip.{ending}", draw_scenes(size=(64, 64)), codec=codec, **options)
    times = FETCHER.frame_times(str(path))
    assert len(times) == 12
    assert all(0 <= time - start < 2 for time, start in zip(times, STARTS, strict=True))


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libx264", {"x264-params": "keyint=infinite:bframes=8:b-pyramid=normal"}),
        ("libx264", {"x264-params": "keyint=30"}),
        ("libx265", {"x265-params": "temporal-layers=3:log-level=0"}),
        ("libsvtav1", {"preset": "12"}),
    ],
)
def test_a_frame_is_the_one_of_a_video_that_is_decoded_whole(
    codec: str, options: dict[str, Any], tmp_path: Path
) -> None:
    scene = draw_scenes(size=(256, 256))[2]
    scrolled = [scene.crop((n, n // 2, n + 128, n // 2 + 128)) for n in range(100)]
    path = write_video(tmp_path / "clip.mp4", scrolled, seconds=10, codec=codec, **options)
    with av.open(path) as container:
        frames = list(container.decode(video=0))
    assert codec != "libx264" or PictureType.B in [frame.pict_type for frame in frames]
    for frame in frames[3::8]:
        expected = io.BytesIO()
        frame.to_image().save(expected, "JPEG", quality=95)
        assert FETCHER.fetch(f"{path}#t={frame.time:g}") == expected.getvalue()


def test_frames_are_upright(tmp_path: Path) -> None:
    stored = quarters(96, 64).transpose(Image.Transpose.ROTATE_90)
    path = write_video(tmp_path / "phone.mp4", [stored], seconds=1)
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 44
    matrix = (0, 1 << 16, 0, -1 << 16, 0, 0, 0, 0, 1 << 30)  # a quarter turn clockwise
    data[at : at + 36] = b"".join(value.to_bytes(4, "big", signed=True) for value in matrix)
    path.write_bytes(data)
    image = frame(f"{path}#t=0")
    assert image.size == (96, 64)
    assert corner_error(np.asarray(image.resize((64, 64)))) <= 25


def test_a_still_video_has_one_frame_and_noise_makes_none(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    base = np.asarray(draw_scenes(size=(96, 96))[0]).astype(int)
    noisy = [Image.fromarray(np.clip(base + rng.normal(0, 12, base.shape), 0, 255).astype(np.uint8)) for _ in range(20)]
    assert FETCHER.frame_times(str(write_video(tmp_path / "noise.mp4", noisy, seconds=20))) == [0.0]


def broken(clip: Path) -> dict[str, bytes]:
    whole, rng = clip.read_bytes(), np.random.default_rng(2)
    playlist = b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n"
    noise = bytearray(whole)
    noise[48:-9000] = rng.bytes(len(noise) - 9048)
    return {
        "cut.mp4": whole[: len(whole) // 2],
        "empty.mp4": b"",
        "noise.mp4": whole[:48] + rng.bytes(20_000),
        "playlist.mp4": playlist,
        "picture.mp4": b"\x89PNG\r\n\x1a\n" + bytes(100),
        "scrambled.mp4": bytes(noise),
    }


def test_broken_videos_are_rejects_and_other_files_are_listed(clip: Path, tmp_path: Path) -> None:
    write_files(tmp_path, broken(clip))
    quarters().save(tmp_path / "a.png")
    listing = list_images(str(tmp_path), extensions=BOTH)
    found = dict(zip(listing["image_id"].to_pylist(), listing["error_reason"].to_pylist(), strict=True))
    assert found == {"a.png": None, **dict.fromkeys(broken(clip), "corrupt")}
    with pytest.raises(SourceError, match="lists no images: the video cannot be read"):
        list_images(str(tmp_path / "cut.mp4"), extensions=BOTH)


def test_a_video_of_an_unknown_codec_says_so(clip: Path, tmp_path: Path) -> None:
    (tmp_path / "clip.mp4").write_bytes(clip.read_bytes().replace(b"avc1", b"what"))
    for read in (FETCHER.frame_times, lambda uri: FETCHER.fetch(f"{uri}#t=1")):
        with pytest.raises(ImageError, match="FFmpeg has no decoder") as caught:
            read(str(tmp_path / "clip.mp4"))
        assert caught.value.reason == "unsupported_format"


def test_flipped_bits_raise_nothing_but_rejections(clip: Path, tmp_path: Path) -> None:
    whole, rng, path = clip.read_bytes(), np.random.default_rng(4), tmp_path / "clip.mp4"
    for _ in range(8):
        data = bytearray(whole)
        for at in rng.integers(8, len(data), 30):
            data[at] = int(rng.integers(256))
        path.write_bytes(data)
        with suppress(Rejected):
            assert FETCHER.fetch(f"{path}#t={FETCHER.frame_times(str(path))[-1]:g}")[:2] == b"\xff\xd8"


@pytest.mark.parametrize(
    ("part", "reason"), [("#t=99", "no_such_frame"), ("#t=61.5", "no_such_frame"), (".mov#t=1", "not_found")]
)
def test_missing_frames_are_rejects(clip: Path, part: str, reason: str) -> None:
    with pytest.raises(Rejected) as caught:
        FETCHER.fetch(f"{clip}{part}")
    assert caught.value.reason == reason


def test_a_video_is_stopped_at_the_deadline(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video_process, "_FRAME_S", 0.001)
    fetcher = Fetcher()
    with pytest.raises(ImageError) as caught:
        fetcher.fetch(f"{clip}#t=3")
    assert caught.value.reason == "decode_timeout"
    monkeypatch.undo()
    assert fetcher.fetch(f"{clip}#t=3")


def test_a_missing_package_is_named(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_videos, "find_spec", lambda name: None)
    with pytest.raises(SourceError, match=r"clip.mp4 is a video: install likeness\[video\]"):
        list_images(str(clip.parent), extensions=BOTH)
    left_out = Counter[str]()
    quarters().save(clip.parent / "a.png")
    assert list_images(str(clip.parent), left_out=left_out).num_rows == 1
    assert str(left_out_warning(left_out)).endswith("; --extensions images,videos embeds frames of videos")


def test_a_video_in_a_bucket_is_read_in_parts(clip: Path, store: Bucket) -> None:
    store.put("pictures/clip.mp4", clip.read_bytes())
    listing = list_images(f"s3://{store.name}/pictures", extensions=BOTH)
    assert listing["uri"].to_pylist() == [f"s3://{store.name}/pictures/clip.mp4#t={start:g}" for start in STARTS]
    assert listing["etag"].null_count == 0
    assert Fetcher(buckets=PictureReader()).fetch(listing["uri"][5].as_py()) == FETCHER.fetch(f"{clip}#t=25")
