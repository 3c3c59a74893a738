"""How many requests may be under way, in all and of one client."""

from __future__ import annotations

from collections import Counter

from mmserve.server.errors import client_full, server_full

__all__ = ["Entry", "Gate"]


class Gate:
    """Who is inside now. Mutable; touched by the event loop only.

    Args:
        max_open: most requests of all together.
        max_client: most requests of one client; 0 for no limit.
    """

    def __init__(self, max_open: int, max_client: int) -> None:
        self._max_open = max_open
        self._max_client = max_client
        self._num_open = 0
        self._clients: Counter[str] = Counter()

    @property
    def num_open(self) -> int:
        """Requests that are inside. Pure."""
        return self._num_open

    def enter(self, owner: str) -> Entry:
        """Let a request in; `owner` is whose own key it has, or "".

        Changes: who is inside, until the entry leaves. Raises the 429 refusal.
        """
        if self._num_open >= self._max_open:
            raise server_full(self._max_open)
        if owner:
            self._add(owner)
        self._num_open += 1
        return Entry(self, owner)

    def _add(self, client: str) -> None:
        if self._max_client and self._clients[client] >= self._max_client:
            raise client_full(self._max_client)
        self._clients[client] += 1

    def _take(self, client: str) -> None:
        self._clients[client] -= 1
        if not self._clients[client]:
            del self._clients[client]


class Entry:
    """One request inside. Mutable: it leaves once, and may learn whose it is on the way."""

    __slots__ = ("_client", "_gate", "_is_named")

    def __init__(self, gate: Gate, owner: str) -> None:
        self._gate: Gate | None = gate
        self._client = owner
        self._is_named = bool(owner)

    def name(self, client: str) -> None:
        """Say whose it is; the first to say so is right.

        Changes: it counts among the requests of this client. Raises the 429 refusal.
        """
        if self._gate is None or self._is_named:
            return
        self._gate._add(client)
        self._client, self._is_named = client, True

    def leave(self) -> None:
        """Changes: it is no longer inside. Idempotent."""
        if self._gate is None:
            return
        self._gate._num_open -= 1
        if self._is_named:
            self._gate._take(self._client)
        self._gate = None
