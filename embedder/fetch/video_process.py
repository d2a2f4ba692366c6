"""Decodes frames of videos in processes that are limited like those for pictures.

The processes run `embedder.fetch.video_frames`. They open no file, but request the parts of the video that they need,
so a video may be in a folder or a bucket.
"""

from typing import Any, Final

from embedder.fetch.files import Files
from embedder.fetch.uris import FrameAt, fetch_error
from embedder.images.decoder_pool import Lane

_MEMORY: Final = 2**30
"""A decoder buffers up to twenty pictures, each of 12 MB in 4K."""
_FRAME_S: Final = 60.0
_VIDEO_S: Final = 1800.0
_NICENESS: Final = 10


class VideoFrames:
    """Reads frames of videos. Processes start when first needed, at most one for each core. Thread-safe."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._lane = Lane(_MEMORY, worker="embedder.fetch.video_frames", niceness=_NICENESS)

    def read(self, uri: str, part: FrameAt) -> bytes:
        """A frame, upright, as a JPEG; raises FetchError and ImageError."""
        return self._ask(uri, {"time": part.time, "wall_s": _FRAME_S})[1]

    def times(self, uri: str) -> list[float]:
        """Times of the frames that show something new, see `video_frames.find_times`; raises as `read`."""
        times: list[float] = self._ask(uri, {"wall_s": _VIDEO_S})[0]["times"]
        return times

    def _ask(self, uri: str, task: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        with self._files.open(uri) as file:

            def read(at: int, count: int) -> bytes:
                try:
                    file.seek(at)
                    return bytes(file.read(count))
                except OSError as error:  # would look like the end of the process
                    raise fetch_error(uri, "read_failed", str(error), retryable=True) from error

            task = {**task, "size": int(file.size()), "cpu_s": 0}
            return self._lane.ask(task, b"", read=read)
