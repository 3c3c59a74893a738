"""Why a prompt token had to be computed, decided when its step is planned.

prompt   [ 0 ... hit )[ ... boundary )[ ... evicted )[ ... namespace )[ never seen ...... )
          from tree     there, but a     was there     there under      pictures among it
                        match must not   once          another salt     that are elsewhere:
                        end here                                        order
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mmserve.core import CacheKind, CacheOutcome, CacheUse, cache_uses
from mmserve.radix import media_parts
from mmserve.sched.memory import KvMemory
from mmserve.sched.sequence import MissMap, Sequence

__all__ = ["note_hits", "note_misses", "survey"]


def survey(sequence: Sequence, memory: KvMemory, start: int) -> MissMap:
    """What the tree knows of a prompt beyond `start`, before its first step is planned. Pure.

    Cost: a match in each of some namespaces, once a sequence.
    """
    if not memory.is_shared:
        return MissMap()
    keys = sequence.keys.view(0, sequence.num_prompt)
    namespace = sequence.spec.prompt.namespace
    cached, known, elsewhere = memory.tree.explain(namespace, keys, len(keys))
    moved = set()
    for place, span in sequence.spans_in(max(start, elsewhere), len(keys)):
        item = int(media_parts(keys[span.start : span.start + 1])[0][0])
        if memory.tree.num_media_tokens(item):
            moved.add(place)
    ends: list[tuple[int, CacheOutcome]] = [
        (cached, "boundary"),
        (known, "evicted"),
        (elsewhere, "namespace"),
    ]
    return MissMap(tuple(ends), frozenset(moved))


def note_hits(sequence: Sequence, start: int, stop: int) -> None:
    """Prompt tokens [start, stop) came from the tree. Changes: the sequence's accounts."""
    _note(sequence, _by_kind(sequence, start, stop, "hit", frozenset()))


def note_misses(sequence: Sequence, start: int, stop: int, seen: MissMap) -> None:
    """Prompt tokens [start, stop) are computed. Changes: the sequence's accounts."""
    uses: list[CacheUse] = []
    for end, outcome in (*seen.ends, (stop, "never_seen")):
        end = min(end, stop)
        if end > start:
            moved = seen.moved_spans if outcome == "never_seen" else frozenset()
            uses.extend(_by_kind(sequence, start, end, outcome, moved))
            start = end
    _note(sequence, uses)


def _by_kind(
    sequence: Sequence, start: int, stop: int, outcome: CacheOutcome, moved: frozenset[int]
) -> Iterator[CacheUse]:
    num_text = stop - start
    for place, span in sequence.spans_in(start, stop):
        num_tokens = min(span.end, stop) - max(span.start, start)
        num_text -= num_tokens
        kind: CacheKind = "image" if span.kind == "image" else "video"
        yield CacheUse(kind, "order" if place in moved else outcome, num_tokens)
    if num_text:
        yield CacheUse("text", outcome, num_text)


def _note(sequence: Sequence, uses: Iterable[CacheUse]) -> None:
    sequence.cache = cache_uses((*sequence.cache, *uses))
    hits = {use.kind: use.num_tokens for use in sequence.cache if use.outcome == "hit"}
    sequence.hits = (hits.get("text", 0), hits.get("image", 0), hits.get("video", 0))
