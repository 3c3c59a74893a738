"""Which addresses may be dialled, and how an address is shown in a message."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

__all__ = ["is_public_address", "shown_url"]

_SHOWN_CHARACTERS = 100
_LONGEST_PARSED = 8192
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
_COMPATIBLE = ipaddress.ip_network("::/96")

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_public_address(text: str) -> bool:
    """Whether a numeric address belongs to the open internet. Pure.

    An IPv4 address inside an IPv6 one (mapped, 6to4, NAT64) is judged by itself; tunnelled
    (Teredo) and scoped addresses are never public.
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        return _is_public_v6(address)
    return _is_public(address)


def _is_public_v6(address: ipaddress.IPv6Address) -> bool:
    if address.teredo or address.scope_id or address.is_site_local or address in _COMPATIBLE:
        return False
    inner = address.ipv4_mapped or address.sixtofour
    if address in _TRANSLATED:
        inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return _is_public(inner) if inner else _is_public(address)


def _is_public(address: _Address) -> bool:
    return address.is_global and not (
        address.is_multicast
        or address.is_reserved
        or address.is_unspecified
        or address.is_loopback
        or address.is_link_local
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
