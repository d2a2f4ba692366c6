"""Selects and decodes frames of videos, in a process that `video_process` starts and sends parts of the file to."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final

from PIL import Image, ImageChops, ImageStat

from embedder.errors import ImageError
from embedder.images.decoder_worker import answer_tasks
from embedder.images.limits import ImageLimits

if TYPE_CHECKING:
    import av
    from av.container import InputContainer

# The other formats include playlists, which name files.
_FORMATS: Final = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpeg,mpegts"
_OPTIONS: Final = {"format_whitelist": _FORMATS, "protocol_whitelist": ""}
_LIMITS: Final = ImageLimits(max_pixels=40_000_000)
_SAMPLE_S: Final = 1.0
"""Seconds between compared frames."""
_MAX_KEYFRAME_GAP_S: Final = 2.0
"""If keyframes are at most so many seconds apart, only they are decoded, which takes a fraction of the time."""
_COMPARED_SIDE: Final = 32
_MIN_DIFFERENCE: Final = 8.0
"""Mean absolute difference of two frames at 32 × 32, in grey levels of 255; noise and compression stay below 3."""
_ROUNDING_S: Final = 0.001
_ORDERING_S: Final = 1.0
"""So much before a wanted frame all are decoded, because a decoder may have to learn their order from them."""


def run(descriptor: int, memory: int, niceness: int) -> None:
    """Read videos, see `answer_tasks`."""
    answer_tasks(_answer, descriptor, memory, niceness)


def _answer(task: dict[str, Any], _: bytes, caller: Connection) -> tuple[dict[str, Any], bytes]:
    try:
        import av
    except ImportError:
        message = "a video; install likeness[video] to read its frames"
        return vars(ImageError("unsupported_format", message, retryable=True)), b""
    av.logging.set_level(None)  # errors are part of the answer
    source = _RemoteFile(caller, task["size"])
    try:
        return ({}, _frame(source, task["time"])) if "time" in task else ({"times": find_times(source)}, b"")
    except ImageError as error:
        return vars(error), b""
    except (av.FFmpegError, ValueError, OverflowError) as error:
        cause = getattr(error, "strerror", None) or error
        return vars(ImageError("corrupt", f"the video cannot be read ({cause}); restore it from its source")), b""


class _RemoteFile(io.RawIOBase):
    """The video's file, which the caller reads for this process."""

    def __init__(self, caller: Connection, size: int) -> None:
        self._caller, self._size, self._at = caller, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        if not 0 <= self._at < self._size:
            return b""
        self._caller.send_bytes(json.dumps({"read": [self._at, size]}).encode())
        self._caller.send_bytes(b"")
        data = self._caller.recv_bytes()
        self._at += len(data)
        return data


@contextmanager
def _open_video(source: _RemoteFile) -> Iterator[InputContainer]:
    import av

    source.seek(0)
    with av.open(source, "r", options=_OPTIONS, buffer_size=2**18, metadata_errors="replace") as container:
        if not container.streams.video:
            raise ImageError("no_frames", "the file has no video stream: expected one with pictures")
        context = container.streams.video[0].codec_context
        if context is None:
            raise ImageError(
                "unsupported_format", "FFmpeg has no decoder for the video; convert it, to H.264 for example"
            )
        context.thread_count = 1  # each thread allocates its own memory
        _LIMITS.check_pixels(context.width, context.height, 0, 1)
        yield container


def find_times(source: _RemoteFile) -> list[float]:
    """Times in seconds of the frames that differ from the last selected one, comparing one frame a second."""
    times: list[float] = []
    for skip in ("NONKEY", "NONREF"):
        with _open_video(source) as container:
            container.streams.video[0].codec_context.skip_frame = skip
            times, gap = _select(container)
        if gap <= _MAX_KEYFRAME_GAP_S:
            break
    if not times:
        raise ImageError("corrupt", "no frame of the video can be decoded; restore it from its source")
    return times


def _select(container: InputContainer) -> tuple[list[float], float]:
    """Times of the selected frames, and the longest gap between decoded frames in seconds."""
    selected, last, gap, previous, sampled = [], None, 0.0, 0.0, -_SAMPLE_S
    for time, frame in _frames(container):
        gap, previous = max(gap, time - previous), time
        if time < sampled + _SAMPLE_S - _ROUNDING_S:
            continue
        sampled = time
        small = frame.reformat(_COMPARED_SIDE, _COMPARED_SIDE, "rgb24", interpolation="AREA").to_image()
        if last is None or _difference(small, last) > _MIN_DIFFERENCE:
            selected.append(round(time, 3))
            last = small
    return selected, max(gap, (container.duration or 0) / 1e6 - previous)


def _difference(one: Image.Image, other: Image.Image) -> float:
    return sum(ImageStat.Stat(ImageChops.difference(one, other)).mean) / 3


def _frames(container: InputContainer, start: float | None = None) -> Iterator[tuple[float, av.VideoFrame]]:
    """Frames with their times in seconds; a damaged packet only costs the frames that depend on it. In H.264, those
    before `start` that no other frame depends on are left out; the marks of other codecs promise less.
    """
    import av

    video = container.streams.video[0]
    for packet in container.demux(video):
        if start is not None and video.codec_context.name == "h264":
            is_before = packet.pts is not None and packet.pts * packet.time_base < start
            video.codec_context.skip_frame = "NONREF" if is_before else "DEFAULT"
        with suppress(av.InvalidDataError):
            for frame in packet.decode():
                if frame.pts is not None and frame.pts >= 0:
                    yield frame.time, frame


def _frame(source: _RemoteFile, start: float) -> bytes:
    """The first frame at or after `start` seconds, as a JPEG."""
    with _open_video(source) as container:
        container.seek(int((start + _ROUNDING_S) * 1e6))
        for time, frame in _frames(container, start - _ORDERING_S):
            if time >= start - _ROUNDING_S:
                image, target = frame.to_image(), io.BytesIO()
                upright = image.rotate(frame.rotation, expand=True) if frame.rotation else image
                upright.save(target, "JPEG", quality=95)
                return target.getvalue()
    raise ImageError("no_such_frame", f"the video has no frame at or after {start:g} s")
