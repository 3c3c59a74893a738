"""Which addresses may be dialled, and how an address is shown in a message."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

__all__ = ["is_public_address", "shown_url"]

_SHOWN_CHARACTERS = 100
_LONGEST_PARSED = 8192
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
_SPECIAL = tuple(
    ipaddress.ip_network(text)
    for text in (
        "192.0.0.0/24",  # protocol assignments
        "192.88.99.0/24",  # relays of 6to4
        "2001::/23",  # protocol assignments, and the tunnel Teredo
        "2001:db8::/32",  # documentation
        "3fff::/20",  # documentation
    )
)
"""What not every Python takes for special."""
_ISATAP = frozenset({0x00005EFE, 0x02005EFE})
"""Third quarter of an address that holds an IPv4 address of a tunnel in its last."""

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_public_address(text: str) -> bool:
    """Whether a numeric address belongs to the open internet. Pure.

    An IPv4 address inside an IPv6 one (mapped, 6to4, NAT64, ISATAP) is judged by itself;
    tunnelled (Teredo) and scoped addresses are never public.
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        return _is_public_v6(address)
    return _is_public(address)


def _is_public_v6(address: ipaddress.IPv6Address) -> bool:
    if address.scope_id:
        return False
    last = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address.ipv4_mapped or address in _TRANSLATED:
        return _is_public(last)
    if address.sixtofour:
        return _is_public(address.sixtofour)
    is_isatap = (int(address) >> 32) & 0xFFFFFFFF in _ISATAP
    if address not in _GLOBAL_UNICAST or (is_isatap and not _is_public(last)):
        return False
    return _is_public(address)


def _is_public(address: _Address) -> bool:
    return address.is_global and not (
        address.is_multicast
        or address.is_reserved
        or address.is_unspecified
        or address.is_loopback
        or address.is_link_local
        or any(address in network for network in _SPECIAL)
    )


def shown_url(url: str) -> str:
    """`url` for a message: no payload, credentials or query, at most 100 characters. Pure."""
    if url[:5].lower() == "data:":
        return "a data: address"
    if len(url) > _LONGEST_PARSED:
        return f"an address of {len(url)} characters"
    try:
        parts = urlsplit(url)
    except ValueError:
        return _cut(url.partition("?")[0])
    where = parts.netloc.rpartition("@")[2]
    shown = f"{parts.scheme}://{where}{parts.path}" if where else f"{url.partition('?')[0]}"
    return _cut(shown) + ("?..." if parts.query else "")


def _cut(text: str) -> str:
    text = text.partition("#")[0]
    text = "".join(letter if letter.isprintable() else "." for letter in text)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
