"""Which encoded pictures the device keeps; the runner's feature store obeys.

room for 100 tokens:  [ A 40 pinned | B 40 | 20 free ]
admit C of 50      -> [ A 40 pinned | C 50 pinned | 10 free ], and B is to be dropped

The ledger decides, in tokens; it holds no features itself.
"""

from __future__ import annotations

from collections import OrderedDict

from mmserve.core import LedgerBroken

__all__ = ["FeatureLedger"]


class FeatureLedger:
    """Encoded items by digest, least recently used first out, never one that is pinned.

    An item is pinned while a running sequence still has tokens of it to compute. An item larger
    than the whole capacity is admitted when nothing else is pinned.
    """

    def __init__(self, capacity_tokens: int) -> None:
        self.capacity_tokens = capacity_tokens
        self.num_tokens = 0
        self._tokens: OrderedDict[bytes, int] = OrderedDict()
        self._pins: dict[bytes, int] = {}
        self._drops: list[bytes] = []

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._tokens

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def num_pinned_tokens(self) -> int:
        """Tokens of pinned items. Pure."""
        return sum(self._tokens[digest] for digest in self._pins)

    def pins(self) -> dict[bytes, int]:
        """Pins of pinned items. Pure."""
        return dict(self._pins)

    def sizes(self) -> dict[bytes, int]:
        """Tokens by item, least recently used first. Pure."""
        return dict(self._tokens)

    def can_admit(self, num_tokens: int) -> bool:
        """Whether an item of this size fits beside what is pinned. Pure."""
        return not self._pins or self.num_pinned_tokens + num_tokens <= self.capacity_tokens

    def victims(self, num_tokens: int) -> list[bytes]:
        """Unpinned items that go when an item of this size is admitted, in order. Pure."""
        excess = self.num_tokens + num_tokens - self.capacity_tokens
        going: list[bytes] = []
        for digest, size in self._tokens.items():
            if excess <= 0:
                break
            if digest not in self._pins:
                going.append(digest)
                excess -= size
        return going

    def admit(self, digest: bytes, num_tokens: int) -> None:
        """Enter an item that the next step encodes; it has one pin.

        Raises:
            LedgerBroken: it is here already, or cannot be admitted.

        Changes: unpinned items may go; `take_drops` names them.
        """
        if digest in self._tokens or not self.can_admit(num_tokens):
            raise LedgerBroken("an item was admitted twice, or without room")
        for other in self.victims(num_tokens):
            self.forget(other)
        self._tokens[digest] = num_tokens
        self._pins[digest] = 1
        self.num_tokens += num_tokens

    def pin(self, digest: bytes) -> None:
        """Keep an item. Changes: its pins, the order of use. KeyError if it is not here."""
        self._tokens.move_to_end(digest)
        self._pins[digest] = self._pins.get(digest, 0) + 1

    def unpin(self, digest: bytes) -> None:
        """Take back one pin. Changes: the item's pins. Raises KeyError if it has none."""
        self._pins[digest] -= 1
        if not self._pins[digest]:
            del self._pins[digest]

    def forget(self, digest: bytes) -> None:
        """Drop an unpinned item. Changes: the next plan drops it. LedgerBroken if pinned."""
        if digest in self._pins:
            raise LedgerBroken("a pinned picture was dropped")
        self.num_tokens -= self._tokens.pop(digest)
        self._drops.append(digest)

    def forget_unpinned(self) -> None:
        """Drop all unpinned items. Changes: the next plan drops them."""
        for digest in [digest for digest in self._tokens if digest not in self._pins]:
            self.forget(digest)

    def take_drops(self) -> tuple[bytes, ...]:
        """Items to drop before the next step, each once. Changes: they are not named again."""
        drops = tuple(dict.fromkeys(self._drops))
        self._drops.clear()
        return drops

    def drop_again(self, digests: tuple[bytes, ...]) -> None:
        """Name drops once more, since the step with them failed. Changes: the next drops."""
        self._drops.extend(digest for digest in digests if digest not in self._tokens)

    def verify(self) -> None:
        """Raise LedgerBroken if counts or pins do not add up. Pure."""
        if self.num_tokens != sum(self._tokens.values()):
            raise LedgerBroken("tokens of encoded pictures are miscounted")
        if any(
            count <= 0 or digest not in self._tokens for digest, count in self._pins.items()
        ):
            raise LedgerBroken("a pin holds no encoded picture")
