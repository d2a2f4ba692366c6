"""A picture's URI → its bytes.

A URI is a local path (or file://), s3:// gs:// az://, or http(s)://. A fragment names a part of a file that is local or
in a bucket: "…/shard.tar#bytes=1536-20479" (inclusive), "…/part.parquet#row=17&column=image", or "…/clip.mp4#t=12.5"
(a frame, as a JPEG).
"""

from functools import cached_property
from typing import TYPE_CHECKING

from embedder.fetch.files import Buckets, Files, require_bytes
from embedder.fetch.parquet_cells import Cells
from embedder.fetch.policy import FetchPolicy
from embedder.fetch.public_addresses import Resolver, resolve_host
from embedder.fetch.uris import WEB_SCHEMES, Cell, FrameAt, fetch_error, scheme_of, split_fragment
from embedder.fetch.validators import UNKNOWN, Download, Validators

if TYPE_CHECKING:
    from embedder.fetch.http import HttpClient
    from embedder.fetch.video_process import VideoFrames

__all__ = ["FetchPolicy", "Fetcher"]


class Fetcher:
    """Fetches pictures within a policy, from buckets only if `buckets` is set. Thread-safe."""

    def __init__(
        self, policy: FetchPolicy | None = None, *, resolve: Resolver = resolve_host, buckets: Buckets | None = None
    ) -> None:
        self.policy = policy or FetchPolicy()
        self._schemes = self.policy.schemes | (buckets.schemes if buckets else frozenset())
        self._resolve = resolve
        self._files = Files(buckets)
        self._cells = Cells(self._files)

    @cached_property
    def _frames(self) -> "VideoFrames":
        from embedder.fetch.video_process import VideoFrames  # imports NumPy and Pillow, which few fetches need

        return VideoFrames(self._files)

    @cached_property
    def _http(self) -> "HttpClient":
        from embedder.fetch.http import HttpClient  # urllib3 takes a tenth of a second, and most jobs have no URLs

        return HttpClient(self.policy, resolve=self._resolve)

    def fetch(self, uri: str) -> bytes:
        """The bytes, at most `policy.max_bytes`. Raises FetchError, or ImageError for a broken video."""
        return self.download(uri).data or b""  # None only for a picture that is known

    def download(self, uri: str, known: Validators = UNKNOWN) -> Download:
        """What `fetch` returns, with the validators of a web server; without bytes if they are still the `known` ones.
        Raises like `fetch`.
        """
        scheme = scheme_of(uri)
        if scheme not in self._schemes:
            expected = " or ".join(f"{allowed}://" for allowed in sorted(self._schemes))
            got = f"{scheme}://" if "://" in uri else "no scheme"
            raise fetch_error(uri, "forbidden_scheme", f"expected a URL with {expected}, got {got}")
        file, part = split_fragment(uri)
        if scheme in WEB_SCHEMES:
            if part is not None:
                raise fetch_error(uri, "bad_uri", "parts can only be read from local files and buckets")
            return self._http.get(uri, known)
        if isinstance(part, Cell | FrameAt):
            limit = self.policy.max_bytes
            data = self._cells.read(file, part, limit) if isinstance(part, Cell) else self._frames.read(file, part)
            require_bytes(uri, len(data), limit)
        else:
            data = self._files.read(file, part, self.policy.max_bytes)
        return Download(data=data)

    def frame_times(self, uri: str) -> list[float]:
        """The times in seconds at which a video, in a file or a bucket, shows something new. Raises like `fetch`."""
        return self._frames.times(uri)
