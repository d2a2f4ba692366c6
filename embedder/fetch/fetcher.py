"""A picture's URI → its bytes.

A URI is a local path (or file://), s3:// gs:// az://, or http(s)://. A fragment names a part of a file, local
or in an object store: "…/shard.tar#bytes=1536-20479" (both included) or "…/part.parquet#row=17&column=image".
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from embedder.errors import FetchError
from embedder.fetch.addresses import Resolver, resolve_host
from embedder.fetch.files import Buckets, Files, require_bytes
from embedder.fetch.http import HttpClient
from embedder.fetch.parquet_cells import Cells
from embedder.fetch.policy import BUCKET_SCHEMES, FetchPolicy
from embedder.fetch.uris import Cell, scheme_of, shown, split_fragment

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
        self._http = HttpClient(self.policy, resolve=resolve)
        self._files = Files(buckets)
        self._cells = Cells(self._files)
        self._again = partial(Fetcher, self.policy, resolve=resolve, buckets=buckets)

    def __reduce__(self) -> tuple[Callable[[], "Fetcher"], tuple[Any, ...]]:
        return self._again, ()

    def fetch(self, uri: str) -> bytes:
        """The bytes, `policy.max_bytes` at most. FetchError with a reason and whether to try again later."""
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
        if isinstance(part, Cell):
            data = self._cells.read(file, part)
            require_bytes(uri, len(data), self.policy.max_bytes)
            return data
        return self._files.read(file, part, self.policy.max_bytes)
