"""Pixels and features: which pictures must be decoded, encoded, and kept while they are needed.

wanted -> (engine decodes) -> provide -> EncodeItem of a step -> features, pinned while a
                                         running sequence has tokens of the span to compute

Pixels are dropped once encoded; if features and KV are lost, they are wanted again. Pictures
that are only hinted at (`early`) go the same way after all others, and are not pinned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from mmserve.core import EncodeItem, FeatureUse, LedgerBroken, MediaSpan
from mmserve.sched.early import Hints
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
        self.hints = Hints(capacity_tokens)
        self.num_early = 0
        """Pictures encoded because of a hint."""
        self.num_early_used = 0
        """Of these, how many a sequence came for while the features were there."""
        self._early: bytes | None = None
        """Of the step that is out: what it encodes because of a hint."""

    # Sequences come and go

    def register(self, sequence: Sequence) -> None:
        """A sequence may need its pictures. Changes: who needs what; hints come true."""
        for span in sequence.spec.prompt.spans:
            hint = self.hints.pop(span.digest)
            if hint is not None and hint.is_encoded:
                self.num_early_used += span.digest in self.ledger
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
        that nobody who waits pays again and again. If nobody has it, who hinted at it, or
        nobody. Changes: what has been shared.
        """
        clients = tuple(self._needers.get(digest, {}).values())
        if not clients:
            is_hinted = digest in self.hints
            return Counter((self.hints[digest].client,)) if is_hinted else Counter()
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
        self._asked[digest] = span.num_features
        self._asked_by[digest] = client
        self._num_tokens += span.num_features
        self._newly_asked.append(digest)

    def ask_ahead(self, spans: Iterable[MediaSpan], client: str) -> None:
        """Want pixels of spans that come later, within bounds. Changes: what is wanted."""
        num_early = sum(self._early_tokens(digest) for digest in self.hints)
        for span in spans:
            num_tokens = self._num_tokens - num_early
            if num_tokens and num_tokens + span.num_features > self._ahead_tokens:
                return
            self.ask(span, client)

    def take_wanted(self) -> tuple[bytes, ...]:
        """Digests asked for since the last call and still needed; others are not awaited.

        When nothing is awaited any more, those of the next hint.
        Changes: what is awaited; none is named again.
        """
        asked, self._newly_asked = self._newly_asked, []
        for digest in asked:
            if digest not in self._needers and digest not in self.hints:
                self.refuse(digest)
        wanted = tuple(digest for digest in asked if digest in self._asked)
        return wanted or self._ask_early()

    def provide(self, digest: bytes, inputs: dict[str, NDArray[Any]], num_patches: int) -> None:
        """Pixels have come; ignored if nobody needs them. Changes: pixels at hand."""
        num_tokens = self._asked.pop(digest, 0)
        self._num_tokens -= num_tokens
        is_needed = digest in self._needers or digest in self.hints
        if not is_needed or digest in self.ledger or digest in self._pixels:
            return
        self._pixels[digest] = _Pixels(inputs, num_patches, num_tokens)
        self._num_tokens += num_tokens

    def refuse(self, digest: bytes) -> None:
        """Pixels cannot be had. Changes: they are not awaited any more, nor hinted at."""
        self._num_tokens -= self._asked.pop(digest, 0)
        if digest in self.hints:
            self._let_go(digest)

    def has_pixels(self, digest: bytes) -> bool:
        """Whether this picture can be used without asking. Pure."""
        return digest in self.ledger or digest in self._pixels

    # Hints

    def anticipate(self, sizes: Mapping[bytes, int], client: str, now_s: float) -> None:
        """Take up pictures (tokens by digest) that somebody will soon ask about: all, or none.

        Those that somebody has, or whose features are here, need nothing. Changes: hints; old
        ones make room.
        """
        for digest in self.hints:
            if self.hints[digest].is_encoded and digest not in self.ledger:
                self.hints.pop(digest)  # its features were evicted
        fresh = {
            digest: num_tokens
            for digest, num_tokens in sizes.items()
            if not (digest in self._needers or digest in self.ledger or digest in self.hints)
        }
        num_tokens = sum(fresh.values())
        for digest in self.hints.old(now_s):
            if not self.hints.has_room(num_tokens):
                self._let_go(digest)
        if fresh and self.hints.has_room(num_tokens):
            self.hints.add(fresh, client, now_s)

    def forget_hints(self) -> None:
        """Changes: nothing is hinted at; what was decoded or encoded for that is dropped."""
        for digest in self.hints:
            self._let_go(digest)

    def encode_early(self, encoding: Encoding) -> bytes | None:
        """Encode the first picture hinted at that has few enough patches; None if none is.

        Nor if there is no room: nobody's features make room for it who is here. Changes: the
        encoding, the ledger.
        """
        most_patches = max(encoding.num_patches_left, encoding.lone_patches)
        for digest in self.hints:
            pixels = self._pixels.get(digest)
            if pixels is None or pixels.num_patches > most_patches:
                continue
            num_tokens = self.hints[digest].num_tokens
            victims = self.ledger.victims(num_tokens)
            is_free = self._needers.keys().isdisjoint(victims)
            if not is_free or not self.ledger.can_admit(num_tokens):
                return None
            self._plan_encode(digest, num_tokens, pixels, encoding)
            self.ledger.unpin(digest)
            self.hints[digest].is_encoded = True
            self._early = digest
            return digest
        return None

    def _ask_early(self) -> tuple[bytes, ...]:
        """Pixels of the next hint, if none are awaited: so nobody waits for more than one."""
        while not self._asked and (group := self.hints.next_group()):
            for digest in group:
                if digest not in self._pixels:
                    self._asked[digest] = self.hints[digest].num_tokens
                    self._num_tokens += self._asked[digest]
            if self._asked:
                return tuple(self._asked)
        return ()

    def _let_go(self, digest: bytes) -> None:
        """A hint comes to nothing. Changes: hints, pixels at hand, the ledger."""
        hint = self.hints.pop(digest)
        self._drop_pixels(digest)
        if hint is not None and hint.is_encoded and digest in self.ledger:
            self.ledger.forget(digest)

    def _early_tokens(self, digest: bytes) -> int:
        """Tokens of a picture hinted at whose pixels are asked for, or at hand. Pure."""
        is_held = digest in self._asked or digest in self._pixels
        return self.hints[digest].num_tokens if is_held else 0

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
        """These were encoded; their pixels are dropped. Changes: pixels at hand, counts."""
        for item in items:
            self._drop_pixels(item.digest)
            self.num_early += item.digest == self._early
        self._early = None

    def not_encoded(self, items: Iterable[EncodeItem], drops: tuple[bytes, ...]) -> None:
        """The step failed; its sequences have left. Changes: the ledger, its drops, hints."""
        for item in items:
            if item.digest in self.ledger:
                self.ledger.forget(item.digest)
            if item.digest in self.hints:
                self._let_go(item.digest)
        self._early = None
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
        self._verify_hints()

    def _verify_hints(self) -> None:
        hints = self.hints
        if any(digest in self._needers for digest in hints):
            raise LedgerBroken("a picture that somebody has is only hinted at")
        if any(digest not in self._needers and digest not in hints for digest in self._pixels):
            raise LedgerBroken("pixels are held for nobody")
        if hints.num_tokens != sum(hints[d].num_tokens for d in hints):
            raise LedgerBroken("pictures hinted at are miscounted")
        if hints.num_tokens > hints.limit_tokens:
            raise LedgerBroken("hints hold more than their share")

    def _encode(self, span: MediaSpan, encoding: Encoding, client: str) -> bool:
        pixels = self._pixels.get(span.digest)
        if pixels is None:
            self.ask(span, client)
            return False
        lone_patches = 0 if encoding.items else encoding.lone_patches
        if pixels.num_patches > max(encoding.num_patches_left, lone_patches):
            return False
        if not self.ledger.can_admit(span.num_features):
            return False
        self._plan_encode(span.digest, span.num_features, pixels, encoding)
        return True

    def _plan_encode(
        self, digest: bytes, num_tokens: int, pixels: _Pixels, encoding: Encoding
    ) -> None:
        self.ledger.admit(digest, num_tokens)
        encoding.items[digest] = EncodeItem(digest, pixels.inputs, pixels.num_patches)
        encoding.num_patches[digest] = pixels.num_patches
        encoding.num_patches_left -= pixels.num_patches

    def _drop_pixels(self, digest: bytes) -> None:
        pixels = self._pixels.pop(digest, None)
        if pixels is not None:
            self._num_tokens -= pixels.num_tokens


def feature_uses(
    spans: list[tuple[int, MediaSpan]], start: int, stop: int
) -> tuple[FeatureUse, ...]:
    """Which rows of encoded media go where in a row that computes [start, stop). Pure."""
    uses: list[FeatureUse] = []
    for _, span in spans:
        num_before = 0
        for run_start, run_end in span.runs or ((0, span.num_tokens),):
            begin, end = span.start + run_start, span.start + run_end
            first, last = max(begin, start), min(end, stop)
            if first < last:
                offset = num_before + first - begin
                uses.append(FeatureUse(span.digest, offset, first - start, last - first))
            num_before += run_end - run_start
    return tuple(uses)
