"""Pictures that somebody will soon ask about: hinted at, and nobody who is here has them.

hint -> waits -> pixels asked for -> pixels at hand -> features, unpinned
        |___________________________________________________________|
                 a sequence that has the picture takes it over, wherever it stands

The tokens of all hints together are bounded, encoded ones included, so that hints never hold
more than a small part of what pictures may take.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

__all__ = ["Hint", "Hints"]

_SHARE = 4
"""Hints hold at most one part in so many of the feature cache."""
_OLD_S = 60.0
"""Seconds after which a hint makes room for a new one."""


@dataclass(slots=True, eq=False)
class Hint:
    """One picture: its size, whose hint it is, when it came, and whether a step encodes it."""

    num_tokens: int
    client: str
    hinted_s: float
    is_encoded: bool = False


class Hints:
    """Pictures hinted at, in the order of the hints, and in groups whose pixels come together.

    Args:
        capacity_tokens: of the feature cache.
    """

    def __init__(self, capacity_tokens: int) -> None:
        self.limit_tokens = capacity_tokens // _SHARE
        self.num_tokens = 0
        self._hints: dict[bytes, Hint] = {}
        self._groups: deque[tuple[bytes, ...]] = deque()

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._hints

    def __len__(self) -> int:
        return len(self._hints)

    def __iter__(self) -> Iterator[bytes]:
        return iter(tuple(self._hints))

    def __getitem__(self, digest: bytes) -> Hint:
        return self._hints[digest]

    def add(self, sizes: Mapping[bytes, int], client: str, now_s: float) -> None:
        """Take pictures in (tokens by digest), one group. Changes: hints."""
        for digest, num_tokens in sizes.items():
            self._hints[digest] = Hint(num_tokens, client, now_s)
            self.num_tokens += num_tokens
        live = (group for group in self._groups if any(d in self._hints for d in group))
        self._groups = deque((*live, tuple(sizes)))

    def pop(self, digest: bytes) -> Hint | None:
        """Let go of one, if it is here. Changes: hints."""
        hint = self._hints.pop(digest, None)
        if hint is not None:
            self.num_tokens -= hint.num_tokens
        return hint

    def has_room(self, num_tokens: int) -> bool:
        """Whether so many tokens more are within bounds. Pure."""
        return self.num_tokens + num_tokens <= self.limit_tokens

    def old(self, now_s: float) -> list[bytes]:
        """Those that have waited long enough to make room for others, oldest first. Pure."""
        return [d for d, hint in self._hints.items() if now_s - hint.hinted_s > _OLD_S]

    def next_group(self) -> tuple[bytes, ...]:
        """The next whose pixels are to be asked for, or (). Changes: the queue."""
        while self._groups:
            group = tuple(digest for digest in self._groups.popleft() if digest in self._hints)
            if group:
                return group
        return ()
