"""Visits web addresses: those of one host one after the other in a few strands, all hosts side by side."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event
from typing import Literal
from urllib.parse import urlsplit

from embedder.errors import FetchError
from embedder.fetch.validators import UNKNOWN, Download, Validators

_MAX_THREADS = 64
_MAX_FAILURES = 5
"""After as many failures in a row a host is left alone until the next job, so one that is down holds up nothing."""
_HOST_FAILURES = {
    **dict.fromkeys(("connection_failed", "timeout", "unknown_host", "tls_failed", "http_503", "http_504"), 1),
    "http_429": _MAX_FAILURES,  # it asks for fewer requests
}


@dataclass(frozen=True, kw_only=True)
class Visit:
    """What was found at an address; `content_hash` (SHA-256 of a picture's bytes) is None if it is as it was known."""

    uri: str
    outcome: Literal["found", "gone", "failed"]
    content_hash: str | None = None
    validators: Validators = UNKNOWN


def failed_outcome(reason: str) -> Literal["gone", "failed"]:
    """What the reason of a failed fetch says about the picture."""
    return "gone" if reason in ("http_404", "http_410") else "failed"


def visit_addresses(uris: Iterable[str], download: Callable[[str], Download], per_host: int) -> Generator[Visit]:
    """Ask for each address once, in any order. Addresses of hosts that fail are left out.

    Closing the iterator ends it after the requests under way.
    """
    hosts = defaultdict[str, list[str]](list)
    for uri in uris:
        hosts[_host(uri)].append(uri)
    strands = [(host, part[start::per_host]) for host, part in hosts.items() for start in range(per_host)]
    strands.sort(key=lambda strand: len(strand[1]), reverse=True)
    visits, stopped, failures = SimpleQueue[Visit | None](), Event(), Counter[str]()

    def follow(host: str, uris: list[str]) -> None:
        try:
            for uri in uris:
                if stopped.is_set() or failures[host] >= _MAX_FAILURES:
                    return
                visit, failed = _visit(uri, download)
                if failures[host] < _MAX_FAILURES:
                    failures[host] = failures[host] + failed if failed else 0
                visits.put(visit)
        finally:
            visits.put(None)

    with ThreadPoolExecutor(_MAX_THREADS, "likeness-check") as pool:
        try:
            futures = [pool.submit(follow, *strand) for strand in strands]
            for _ in strands:
                yield from iter(visits.get, None)
            for future in futures:
                future.result()
        finally:
            stopped.set()


def _visit(uri: str, download: Callable[[str], Download]) -> tuple[Visit, int]:
    """The visit, and as how many failures of the host it counts."""
    try:
        found = download(uri)
    except FetchError as error:
        return Visit(uri=uri, outcome=failed_outcome(error.reason)), _HOST_FAILURES.get(error.reason, 0)
    content_hash = None if found.data is None else hashlib.sha256(found.data).hexdigest()
    return Visit(uri=uri, outcome="found", content_hash=content_hash, validators=found.validators), 0


def _host(uri: str) -> str:
    try:
        return urlsplit(uri).hostname or ""
    except ValueError:  # the visit fails too
        return ""
