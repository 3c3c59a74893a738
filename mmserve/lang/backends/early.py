"""Hints to a server of ours: media that calls will soon ask about."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from mmserve.core import ImagePart, MmserveError, VideoPart
from mmserve.core.wire import wire_part
from mmserve.lang.backends.transport import transport_errors
from mmserve.lang.backends.uploads import Uploads

if TYPE_CHECKING:
    import httpx

__all__ = ["EarlyMedia"]

_log = logging.getLogger("mmserve.lang")
_MOST_KNOWN = 10_000
_HINT_S = 60.0
_REFUSED = 400


class EarlyMedia:
    """Tells one server of media ahead of the calls, each once. Safe from any thread."""

    def __init__(self, http: httpx.Client, uploads: Uploads) -> None:
        self._http = http
        self._uploads = uploads
        self._lock = threading.Lock()
        self._told: OrderedDict[int, None] = OrderedDict()
        self._has_route = True

    def tell(self, part: ImagePart | VideoPart, cache_salt: str) -> None:
        """Upload it if need be and tell the server, in a thread. Never raises."""
        key = hash((part, cache_salt))
        with self._lock:
            if not self._has_route or key in self._told:
                return
            self._told[key] = None
            if len(self._told) > _MOST_KNOWN:
                self._told.popitem(last=False)
        threading.Thread(
            target=self._send, args=(part, cache_salt), name="mmserve-early", daemon=True
        ).start()

    def _send(self, part: ImagePart | VideoPart, cache_salt: str) -> None:
        try:
            names = next(self._uploads.attempts())
            body = {"media": [wire_part(part, names.url_of)], "cache_salt": cache_salt}
            with transport_errors(str(self._http.base_url)):
                response = self._http.post("/prepare", json=body, timeout=_HINT_S)
        except (MmserveError, RuntimeError) as error:  # a closed client raises RuntimeError
            _log.debug("a hint was not sent: %s", error)
            return
        if response.status_code in (404, 405):
            self._has_route = False  # an older server
        elif response.status_code >= _REFUSED:
            _log.debug("a hint was refused with status %d", response.status_code)
