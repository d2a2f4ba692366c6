"""A picture's URI → its bytes.

A URI is a local path (or file://), s3:// gs:// az://, or http(s)://. A fragment names a part of a file, local
or in an object store: "…/shard.tar#bytes=1536-20479" (both included) or "…/part.parquet#row=17&column=image".
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa

from embedder.errors import FetchError
from embedder.fetch.addresses import Resolver, resolve_host
from embedder.fetch.http import HttpClient
from embedder.fetch.parquet_cells import Cells
from embedder.fetch.policy import FetchPolicy
from embedder.fetch.stores import Stores
from embedder.fetch.uris import ByteRange, Cell, scheme_of, shown, split_fragment

__all__ = ["FetchPolicy", "Fetcher"]


class Fetcher:
    """Fetches pictures within a policy. Thread-safe; pickles as its policy, without open connections."""

    def __init__(self, policy: FetchPolicy | None = None, *, resolve: Resolver = resolve_host) -> None:
        self.policy = policy or FetchPolicy()
        self._resolve = resolve
        self._http = HttpClient(self.policy, resolve=resolve)
        self._stores = Stores(self.policy)
        self._cells = Cells(self._stores)

    def __reduce__(self) -> tuple[Callable[[], "Fetcher"], tuple[Any, ...]]:
        return partial(Fetcher, self.policy, resolve=self._resolve), ()

    def fetch(self, uri: str) -> bytes:
        """The bytes, `policy.max_bytes` at most. FetchError with a reason and whether to try again later."""
        scheme = scheme_of(uri)
        if scheme not in self.policy.schemes:
            expected = " or ".join(f"{known}://" for known in sorted(self.policy.schemes))
            got = f"{scheme}://" if "://" in uri else "no scheme"
            raise FetchError("forbidden_scheme", f"{shown(uri)}: expected a URL with {expected}, got {got}")
        file, part = split_fragment(uri)
        if scheme in ("http", "https"):
            if part is not None:
                raise FetchError("bad_uri", f"{shown(uri)}: parts are read from local files and object stores only")
            return self._http.get(uri)
        if isinstance(part, Cell):
            data = self._cells.read(file, part)
            self._check_size(uri, len(data))
            return data
        with self._stores.open(file) as stream:
            return self._read(uri, stream, part)

    def _read(self, uri: str, file: pa.NativeFile, part: ByteRange | None) -> bytes:
        size = int(file.size())
        first, end = (0, size) if part is None else (part.first, part.last + 1)
        if end > size:
            raise FetchError("out_of_range", f"{shown(uri)}: the file ends at {size:,} bytes; has it been rewritten?")
        self._check_size(uri, end - first)
        file.seek(first)
        data = bytes(file.read(end - first))
        if len(data) != end - first:
            raise FetchError("read_failed", f"{shown(uri)}: shrank while it was read", retryable=True)
        return data

    def _check_size(self, uri: str, size: int) -> None:
        if size > self.policy.max_bytes:
            limit = self.policy.max_bytes
            raise FetchError("too_many_bytes", f"{shown(uri)}: {size:,} bytes, at most {limit:,} are allowed")
