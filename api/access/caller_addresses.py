"""Parses callers' addresses and Host headers. Nothing here raises, whatever a caller sends."""

import re
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final

# As in RFC 9110, for names without per cent signs: no user before the host, and no path after it.
_HOST: Final = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::[0-9]*)?")
_CALLER_PREFIX_BITS: Final = 64  # bits of an IPv6 address: one caller usually has a whole /64


def canonical_address(text: str) -> IPv4Address | IPv6Address | None:
    """`text` as an address, or None if it is not one.

    A socket for both IPv6 and IPv4 reports IPv4 callers as mapped addresses, such as ::ffff:127.0.0.1; this returns the
    IPv4 address.
    """
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def is_loopback(host: str) -> bool:
    """Whether a host name or address is a loopback one, without resolving it."""
    address = canonical_address(host)
    return host == "localhost" if address is None else address.is_loopback


def caller_id(host: str) -> str:
    """The caller whose rate a request from this address counts against. All invalid addresses are one caller, because
    anybody can make up more.
    """
    address = canonical_address(host)
    if isinstance(address, IPv6Address):
        return str(IPv6Network((int(address), _CALLER_PREFIX_BITS), strict=False))
    return "unknown" if address is None else str(address)


def host_name(header: str) -> str:
    """The host in a Host header, without the port and in lower case; empty if there is none."""
    match = _HOST.fullmatch(header)
    return "" if match is None else (match["v6"] or match["name"]).lower()
