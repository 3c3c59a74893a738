"""Pixels and features: which pictures must be decoded, encoded, and kept while they are needed.

wanted -> (engine decodes) -> provide -> EncodeItem of a step -> features, pinned while a
                                         running sequence has tokens of the span to compute

Pixels are dropped once encoded; if features and KV are lost, they are wanted again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from mmserve.core import EncodeItem, FeatureUse, LedgerBroken, MediaSpan
from mmserve.sched.sequence import Sequence
from mmserve.vision.ledger import FeatureLedger

__all__ = ["Encoding", "MediaDesk", "feature_uses"]


_AHEAD_TOKENS = 16384
"""About 150 MB of pixels where a token stands for 28 x 28 of them in float32."""


@dataclass(frozen=True, slots=True, eq=False)
class _Pixels:
    inputs: dict[str, NDArray[Any]]
    num_patches: int
    num_tokens: int


@dataclass(slots=True, eq=False)
class Encoding:
    """What one step encodes, how many patches each has, and how many more it may take."""

    num_patches_left: int
    lone_patches: int
    items: dict[bytes, EncodeItem]
    num_patches: dict[bytes, int]


class MediaDesk:
    """Pixels asked for and at hand, and the ledger of features.

    Asks ahead for pixels of at most twice the feature cache, and of 16384 tokens, so that many
    pictures do not fill the memory; what a sequence needs next is always asked for.
    """

    def __init__(self, capacity_tokens: int) -> None:
        self.ledger = FeatureLedger(capacity_tokens)
        self._asked: dict[bytes, int] = {}
        self._newly_asked: list[bytes] = []
        self._pixels: dict[bytes, _Pixels] = {}
        self._needers: dict[bytes, dict[int, str]] = {}
        """Ids of sequences that have a picture, with their clients."""
        self._asked_by: dict[bytes, str] = {}
        """Client for whom pixels were asked last."""
        self._shared: set[tuple[bytes, str]] = set()
        """Work on pictures somebody has that was charged to all who did."""
        self._ahead_tokens = min(2 * capacity_tokens, _AHEAD_TOKENS)
        self._num_tokens = 0

    # Sequences come and go

    def register(self, sequence: Sequence) -> None:
        """A sequence may need its pictures. Changes: who needs what."""
        for span in sequence.spec.prompt.spans:
            needers = self._needers.setdefault(span.digest, {})
            needers[sequence.sequence_id] = sequence.spec.client

    def leave(self, sequence: Sequence) -> None:
        """It needs none of them any more. Changes: pins; pixels nobody needs are dropped."""
        self.unpin_all(sequence)
        for span in sequence.spec.prompt.spans:
            needers = self._needers.get(span.digest)
            if needers is None:
                continue
            needers.pop(sequence.sequence_id, None)
            if not needers:
                del self._needers[span.digest]
                self._asked_by.pop(span.digest, None)
                self._shared.difference_update(
                    ((span.digest, "decode"), (span.digest, "encode"))
                )
                self._drop_pixels(span.digest)

    def needers(self, digest: bytes) -> tuple[int, ...]:
        """Ids of sequences that have this picture, in order. Pure."""
        return tuple(sorted(self._needers.get(digest, ())))

    def bill(self, digest: bytes, work: str, client: str | None = None) -> Counter[str]:
        """Whom work on a picture is charged to: how many shares each client has.

        All who have the picture, the first time; then `client`, or who asked for the pixels, so
        that nobody who waits pays again and again. Nobody, if nobody has it. Changes: what has
        been shared.
        """
        clients = tuple(self._needers.get(digest, {}).values())
        if not clients:
            return Counter()
        if (digest, work) in self._shared:
            payer = self._asked_by.get(digest, clients[0]) if client is None else client
            return Counter((payer,))
        self._shared.add((digest, work))
        return Counter(clients)

    # Pixels

    def is_awaited(self, digest: bytes) -> bool:
        """Whether pixels were asked for and have not come. Pure."""
        return digest in self._asked

    def ask(self, span: MediaSpan, client: str) -> None:
        """Want pixels for a client, unless they are at hand or asked for.

        Changes: what is wanted.
        """
        digest = span.digest
        if digest in self.ledger or digest in self._pixels or digest in self._asked:
            return
        self._asked[digest] = span.num_tokens
        self._asked_by[digest] = client
        self._num_tokens += span.num_tokens
        self._newly_asked.append(digest)

    def ask_ahead(self, spans: Iterable[MediaSpan], client: str) -> None:
        """Want pixels of spans that come later, within bounds. Changes: what is wanted."""
        for span in spans:
            if self._num_tokens and self._num_tokens + span.num_tokens > self._ahead_tokens:
                return
            self.ask(span, client)

    def take_wanted(self) -> tuple[bytes, ...]:
        """Digests asked for since the last call and still needed; others are not awaited.

        Changes: what is awaited; none is named again.
        """
        asked, self._newly_asked = self._newly_asked, []
        for digest in asked:
            if digest not in self._needers:
                self.refuse(digest)
        return tuple(digest for digest in asked if digest in self._asked)

    def provide(self, digest: bytes, inputs: dict[str, NDArray[Any]], num_patches: int) -> None:
        """Pixels have come; ignored if nobody needs them. Changes: pixels at hand."""
        num_tokens = self._asked.pop(digest, 0)
        self._num_tokens -= num_tokens
        if digest not in self._needers or digest in self.ledger or digest in self._pixels:
            return
        self._pixels[digest] = _Pixels(inputs, num_patches, num_tokens)
        self._num_tokens += num_tokens

    def refuse(self, digest: bytes) -> None:
        """Pixels cannot be had. Changes: they are not awaited any more."""
        self._num_tokens -= self._asked.pop(digest, 0)

    def has_pixels(self, digest: bytes) -> bool:
        """Whether this picture can be used without asking. Pure."""
        return digest in self.ledger or digest in self._pixels

    # A step

    def secure(
        self, sequence: Sequence, place: int, span: MediaSpan, encoding: Encoding
    ) -> bool:
        """Make sure of a span's features in this step; False if that cannot be.

        Changes: pins them for the sequence; may plan an encode; may ask for pixels.
        """
        if place in sequence.secured:
            return True
        if span.digest in self.ledger:
            self.ledger.pin(span.digest)
        elif not self._encode(span, encoding, sequence.spec.client):
            return False
        sequence.secured.add(place)
        return True

    def settle(self, sequence: Sequence) -> None:
        """Unpin features whose tokens are all computed. Changes: pins."""
        if not sequence.secured:
            return
        spans = sequence.spec.prompt.spans
        for place in [p for p in sequence.secured if spans[p].end <= sequence.computed]:
            sequence.secured.discard(place)
            self.ledger.unpin(spans[place].digest)

    def unpin_all(self, sequence: Sequence) -> None:
        """Unpin all features of a sequence. Changes: pins."""
        for place in sequence.secured:
            self.ledger.unpin(sequence.spec.prompt.spans[place].digest)
        sequence.secured.clear()

    def encoded(self, items: Iterable[EncodeItem]) -> None:
        """These were encoded; their pixels are dropped. Changes: pixels at hand."""
        for item in items:
            self._drop_pixels(item.digest)

    def not_encoded(self, items: Iterable[EncodeItem], drops: tuple[bytes, ...]) -> None:
        """The step failed; its sequences have left. Changes: the ledger, the next drops."""
        for item in items:
            if item.digest in self.ledger:
                self.ledger.forget(item.digest)
        self.ledger.drop_again(drops)

    def verify(self, sequences: Iterable[Sequence]) -> None:
        """Raise LedgerBroken unless pins and counts of pixels add up. Pure."""
        self.ledger.verify()
        pins: Counter[bytes] = Counter()
        for sequence in sequences:
            spans = sequence.spec.prompt.spans
            pins.update(spans[place].digest for place in sequence.secured)
        if pins != self.ledger.pins():
            raise LedgerBroken("pins of encoded pictures are miscounted")
        num_held = sum(pixels.num_tokens for pixels in self._pixels.values())
        if self._num_tokens != num_held + sum(self._asked.values()):
            raise LedgerBroken("pixels at hand are miscounted")

    def _encode(self, span: MediaSpan, encoding: Encoding, client: str) -> bool:
        pixels = self._pixels.get(span.digest)
        if pixels is None:
            self.ask(span, client)
            return False
        lone_patches = 0 if encoding.items else encoding.lone_patches
        if pixels.num_patches > max(encoding.num_patches_left, lone_patches):
            return False
        if not self.ledger.can_admit(span.num_tokens):
            return False
        self.ledger.admit(span.digest, span.num_tokens)
        encoding.items[span.digest] = EncodeItem(span.digest, pixels.inputs)
        encoding.num_patches[span.digest] = pixels.num_patches
        encoding.num_patches_left -= pixels.num_patches
        return True

    def _drop_pixels(self, digest: bytes) -> None:
        pixels = self._pixels.pop(digest, None)
        if pixels is not None:
            self._num_tokens -= pixels.num_tokens


def feature_uses(
    spans: list[tuple[int, MediaSpan]], start: int, stop: int
) -> tuple[FeatureUse, ...]:
    """Which rows of encoded media go where in a row that computes [start, stop). Pure."""
    uses = []
    for _, span in spans:
        first, last = max(span.start, start), min(span.end, stop)
        if first < last:
            use = FeatureUse(span.digest, first - span.start, first - start, last - first)
            uses.append(use)
    return tuple(uses)
