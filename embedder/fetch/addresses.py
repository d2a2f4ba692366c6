"""From a host's name to a connection to an address that was checked: an answer that changes afterwards (DNS rebinding)
changes nothing.
"""

import ipaddress
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Thread

Resolver = Callable[[str, int], Sequence[str]]
"""Host and port → numeric addresses, the preferred first. `socket.gaierror` when there are none."""

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
# Public by number, but not by what is there; or private, and unknown as such to Python 3.11.
_NOT_PUBLIC = [
    ipaddress.ip_network(network)
    for network in (
        "192.0.0.0/24",  # protocol assignments; a cloud's metadata service among them
        "192.88.99.0/24",  # 6to4 relays
        "168.63.129.16/32",  # Azure's host agent: a public number that answers inside virtual machines only
        "2001::/23",  # protocol assignments, Teredo among them
        "2002::/16",  # 6to4, which carries any IPv4 address
        "3fff::/20",  # documentation
    )
]


class ForbiddenAddressError(Exception):
    """A host has an address that is not public."""


def is_public(address: str) -> bool:
    """Whether a numeric address belongs to the public internet. IPv4 inside IPv6 (mapped, NAT64) is judged as IPv4."""
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.scope_id is not None:
            return False
        embedded = ip.ipv4_mapped or (ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF) if ip in _NAT64 else None)
        if embedded is not None:
            return is_public(str(embedded))
        if ip not in _GLOBAL_UNICAST:
            return False
    return ip.is_global and not ip.is_multicast and not any(ip in network for network in _NOT_PUBLIC)


def resolve_host(host: str, port: int) -> list[str]:
    """The system's answer, without repeats. Reads numbers in any notation: 0x7f.1, 2130706433."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[4][0]) for address in found))


def open_socket(host: str, port: int, *, timeout: float, resolve: Resolver, any_address: bool = False) -> socket.socket:
    """Connect to the first address that answers within `timeout` seconds, look-up included.

    One address that is not public forbids the host: ForbiddenAddressError. Otherwise the errors of sockets.
    """
    deadline = time.monotonic() + timeout
    addresses = _resolve_within(timeout, resolve, host, port)
    if not addresses:
        raise socket.gaierror(socket.EAI_NONAME, "no address")
    if not any_address and not all(is_public(address) for address in addresses):
        raise ForbiddenAddressError(host)
    failure: OSError = TimeoutError("no time left to connect")
    for address in addresses:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        try:
            return socket.create_connection((address, port), timeout=left)
        except OSError as error:
            failure = error
    raise failure


def _resolve_within(timeout: float, resolve: Resolver, host: str, port: int) -> Sequence[str]:
    # getaddrinfo takes no time-out and a hostile name server can make it last: it is left behind in time.
    answer: Future[Sequence[str]] = Future()

    def look_up() -> None:
        try:
            answer.set_result(resolve(host, port))
        except Exception as error:  # ValueError: a name that cannot be one, with a part too long or a NUL
            unknown = isinstance(error, ValueError)
            answer.set_exception(socket.gaierror(socket.EAI_NONAME, str(error)) if unknown else error)

    Thread(target=look_up, name="resolve-host", daemon=True).start()
    return answer.result(timeout)
