"""A picture's URI → its bytes.

A URI is a local path (or file://), s3:// gs:// az://, or http(s)://. A fragment names a part of a file, local
or in an object store: "…/shard.tar#bytes=1536-20479" (both included), "…/part.parquet#row=17&column=image", or
"…/clip.mp4#t=12.5", a frame as a JPEG.
"""

from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from embedder.errors import FetchError
from embedder.fetch.addresses import Resolver, resolve_host
from embedder.fetch.files import Buckets, Files, require_bytes
from embedder.fetch.parquet_cells import Cells
from embedder.fetch.policy import BUCKET_SCHEMES, FetchPolicy
from embedder.fetch.uris import Cell, FrameAt, scheme_of, shown, split_fragment

if TYPE_CHECKING:
    from embedder.fetch.http import HttpClient
    from embedder.fetch.video_process import VideoFrames

__all__ = ["FetchPolicy", "Fetcher"]


class Fetcher:
    """Fetches pictures within a policy; without `buckets` none from buckets. Thread-safe.

    It pickles as its arguments, without open connections.
    """

    def __init__(
        self, policy: FetchPolicy | None = None, *, resolve: Resolver = resolve_host, buckets: Buckets | None = None
    ) -> None:
        self.policy = policy or FetchPolicy()
        self._schemes = self.policy.schemes - (frozenset() if buckets else BUCKET_SCHEMES)
        self._resolve = resolve
        self._files = Files(buckets)
        self._cells = Cells(self._files)
        self._again = partial(Fetcher, self.policy, resolve=resolve, buckets=buckets)

    @cached_property
    def _frames(self) -> "VideoFrames":
        from embedder.fetch.video_process import VideoFrames  # with NumPy and Pillow, which few need for it

        return VideoFrames(self._files)

    def __reduce__(self) -> tuple[Callable[[], "Fetcher"], tuple[Any, ...]]:
        return self._again, ()

    @cached_property
    def _http(self) -> "HttpClient":
        from embedder.fetch.http import HttpClient  # late: urllib3 takes a tenth of a second, and most need no URL

        return HttpClient(self.policy, resolve=self._resolve)

    def fetch(self, uri: str) -> bytes:
        """The bytes, `policy.max_bytes` at most. FetchError with a reason and whether to try again later.

        ImageError for a video that cannot be decoded.
        """
        scheme = scheme_of(uri)
        if scheme not in self._schemes:
            expected = " or ".join(f"{known}://" for known in sorted(self._schemes))
            got = f"{scheme}://" if "://" in uri else "no scheme"
            raise FetchError("forbidden_scheme", f"{shown(uri)}: expected a URL with {expected}, got {got}")
        file, part = split_fragment(uri)
        if scheme in ("http", "https"):
            if part is not None:
                raise FetchError("bad_uri", f"{shown(uri)}: parts are read from local files and object stores only")
            return self._http.get(uri)
        if isinstance(part, Cell | FrameAt):
            data = self._cells.read(file, part) if isinstance(part, Cell) else self._frames.read(file, part)
            require_bytes(uri, len(data), self.policy.max_bytes)
            return data
        return self._files.read(file, part, self.policy.max_bytes)

    def frame_times(self, uri: str) -> list[float]:
        """When a video, a file or an object in a bucket, shows something new, in seconds. Raises as `fetch`."""
        return self._frames.times(uri)
