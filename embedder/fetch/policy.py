"""The limits of fetching: allowed hosts, sizes and times. `public_addresses.py` checks the hosts' addresses."""

from collections.abc import Iterable
from dataclasses import dataclass

PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, kw_only=True)
class FetchPolicy:
    """The limits of a `Fetcher`. The defaults suit a job that reads its own sources.

    Times, retries and hosts apply to http(s). `timeout_s` limits a whole fetch, from the look-up of the name to the
    last byte, including redirects, retries and the waits between them. `public_only` allows only pictures from public
    addresses on `PORTS` and from `allowed_hosts`: "host" (any port) or "host:port". `per_host` limits the requests of a
    process that a host has to answer at a time. A host is refused at once after `max_timeouts` attempts, if all of them
    timed out; this is for the fetcher of one job.
    """

    max_bytes: int = 64 * 2**20
    timeout_s: float = 30.0
    connect_timeout_s: float = 5.0
    retries: int = 3
    backoff_s: float = 0.5
    max_redirects: int = 5
    per_host: int | None = 8
    max_timeouts: int | None = None
    schemes: frozenset[str] = frozenset({"file", *PORTS})
    public_only: bool = False
    allowed_hosts: frozenset[str] = frozenset()

    @classmethod
    def for_untrusted_urls(cls, allowed_hosts: Iterable[str] = ()) -> "FetchPolicy":
        """Only public web servers, with low limits on size and time."""
        return cls(
            max_bytes=16 * 2**20,
            timeout_s=10.0,
            connect_timeout_s=3.0,
            retries=1,
            backoff_s=0.2,
            max_redirects=3,
            per_host=None,  # so that nobody holds up the queries of others
            schemes=frozenset(PORTS),
            public_only=True,
            allowed_hosts=frozenset(host.lower() for host in allowed_hosts),
        )

    def allows_host(self, host: str, port: int) -> bool:
        """Whether a host is allowed without a check of its address and port."""
        host = host.lower().strip("[]").rstrip(".")
        names = {host, f"[{host}]"} if ":" in host else {host}
        allowed = any(name in self.allowed_hosts or f"{name}:{port}" in self.allowed_hosts for name in names)
        return allowed or not self.public_only
