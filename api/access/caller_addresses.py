"""Callers' addresses, and the names by which they address this server. Nothing here raises, whatever a caller sends."""

import re
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final

# As RFC 9110 has it, for names without per cent signs: no user before the host, no path after it.
_HOST: Final = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::[0-9]*)?")
_OF_ONE_CALLER: Final = 64  # bits of an IPv6 address: one caller usually has a whole /64


def canonical_address(text: str) -> IPv4Address | IPv6Address | None:
    """The address that `text` stands for; None if it is no address.

    On a socket for IPv6 and IPv4, callers by IPv4 have mapped addresses, such as ::ffff:127.0.0.1: these are IPv4 ones.
    """
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def is_loopback(host: str) -> bool:
    """Whether a host's name or address is a loopback one, without resolving it."""
    address = canonical_address(host)
    return host == "localhost" if address is None else address.is_loopback


def caller_at(host: str) -> str:
    """To whose rate a request from this address counts. What is no address is one caller: anybody can make up more."""
    address = canonical_address(host)
    if isinstance(address, IPv6Address):
        return str(IPv6Network((int(address), _OF_ONE_CALLER), strict=False))
    return "unknown" if address is None else str(address)


def named_host(header: str) -> str:
    """The host in a Host header, without the port and in lower case; empty if there is none."""
    found = _HOST.fullmatch(header)
    return "" if found is None else (found["v6"] or found["name"]).lower()
