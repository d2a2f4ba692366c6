"""Connects to a host if all of its addresses are public. DNS rebinding after the check has no effect."""

import ipaddress
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Thread

Resolver = Callable[[str, int], Sequence[str]]
"""Host and port → numeric addresses, the preferred one first. Raises `socket.gaierror` if there are none."""

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
# Networks that Python 3.11 takes for public but that are not, or that lead to private addresses.
_NOT_PUBLIC = [
    ipaddress.ip_network(network)
    for network in (
        "192.0.0.0/24",  # protocol assignments, among them a cloud's metadata service
        "192.88.99.0/24",  # 6to4 relays
        "168.63.129.16/32",  # Azure's host agent: a public address that only answers inside virtual machines
        "2001::/23",  # protocol assignments, among them Teredo
        "2002::/16",  # 6to4, which can contain any IPv4 address
        "3fff::/20",  # documentation
    )
]


class ForbiddenAddressError(Exception):
    """A host has an address that is not public."""


def is_public(address: str) -> bool:
    """Whether a numeric address is on the public internet. IPv4 inside IPv6 (mapped, NAT64) is checked as IPv4."""
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
    """The system's answer, without duplicates. Reads numbers in any notation: 0x7f.1, 2130706433."""
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[4][0]) for address in infos))


def open_socket(
    host: str, port: int, *, timeout: float, resolve: Resolver, allow_private: bool = False
) -> socket.socket:
    """Connect to the first address that answers within `timeout` seconds, which include the look-up.

    Raises ForbiddenAddressError if any of the host's addresses is not public, else the errors of sockets.
    """
    deadline = time.monotonic() + timeout
    addresses = _resolve_within(timeout, resolve, host, port)
    if not addresses:
        raise socket.gaierror(socket.EAI_NONAME, "no address")
    if not allow_private and not all(is_public(address) for address in addresses):
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
    # In a thread that is abandoned at the timeout: getaddrinfo has none, and a hostile name server can make it slow.
    answer: Future[Sequence[str]] = Future()

    def look_up() -> None:
        try:
            answer.set_result(resolve(host, port))
        except Exception as error:  # ValueError: an invalid name, with too long a part or a NUL
            unknown = isinstance(error, ValueError)
            answer.set_exception(socket.gaierror(socket.EAI_NONAME, str(error)) if unknown else error)

    Thread(target=look_up, name="resolve-host", daemon=True).start()
    return answer.result(timeout)
