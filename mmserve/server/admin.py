"""What only the operator may do, and who that is."""

from __future__ import annotations

from urllib.parse import urlsplit

from fastapi import Request as HttpRequest

from mmserve.core import ServerConfig
from mmserve.server.clients import is_admin, is_loopback, key_of
from mmserve.server.errors import admin_only, cross_site, key_missing

__all__ = ["ADMIN_PATHS", "check_admin"]

ADMIN_PATHS = frozenset(
    {
        "/flush_cache",
        "/show/constrained",
        "/show/radix",
        "/show/radix.json",
        "/show/sched",
        "/show/vision",
    }
)
"""Routes of the operator. `abort_all` of /abort_request is, too; a single id is its owner's."""

_OTHER_SITES = ("cross-site", "same-site")


def check_admin(http: HttpRequest, config: ServerConfig) -> None:
    """Raise the 401 or 403 refusal unless the operator asks. Pure.

    Where no key is needed, a browser's word that a page of another site asks is enough to
    refuse, and so is another name than the machine's own, by which a page may come to be of
    this site: pages may send requests to this machine without its user knowing.
    """
    key = key_of(http.headers.raw)
    if not is_admin(key, config):
        raise admin_only() if key or not config.admin_key else key_missing()
    is_open = not (config.admin_key or config.api_key)
    if is_open and not _is_from_here(http):
        raise cross_site()


def _is_from_here(http: HttpRequest) -> bool:
    try:
        host = urlsplit(f"//{http.headers.get('host', '')}").hostname
    except ValueError:  # brackets that do not close
        return False
    return is_loopback(host or "") and http.headers.get("sec-fetch-site") not in _OTHER_SITES
