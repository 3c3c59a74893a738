"""What a radix tree should do, slowly and plainly: a dictionary of prefixes."""

from __future__ import annotations

from collections import Counter

__all__ = ["Pages", "TreeModel"]

Prefix = tuple[int, ...]


class Pages:
    """Reference allocator: a set of free pages; slots of a page are contiguous."""

    def __init__(self, num_pages: int, page_tokens: int) -> None:
        self.page_tokens = page_tokens
        self.free = set(range(num_pages))

    def take(self, num_pages: int) -> list[int]:
        """Slots of any free pages."""
        pages = [self.free.pop() for _ in range(num_pages)]
        size = self.page_tokens
        return [page * size + offset for page in pages for offset in range(size)]

    def give_back(self, slots: list[int]) -> None:
        """Whole pages, each once, none of them free."""
        size = self.page_tokens
        assert len(set(slots)) == len(slots)
        pages = {slot // size for slot in slots}
        assert len(pages) * size == len(slots)
        assert not pages & self.free
        self.free |= pages


class TreeModel:
    """Prefixes of whole pages by namespace: cached, evicted, pinned, wished for."""

    def __init__(self, page_tokens: int) -> None:
        self.page_tokens = page_tokens
        self.slots: dict[tuple[str, Prefix], list[int]] = {}
        """Slots of the last page of each prefix that has KV."""
        self.evicted: set[tuple[str, Prefix]] = set()
        self.pins: Counter[tuple[str, Prefix]] = Counter()
        self.guests: Counter[tuple[str, Prefix]] = Counter()

    # Prefixes

    def prefixes(self, keys: Prefix, start: int = 0) -> list[Prefix]:
        """All prefixes of whole pages that end behind `start`, shortest first."""
        page = self.page_tokens
        return [keys[:end] for end in range(start + page, len(keys) + 1, page)]

    def num_cached(self, namespace: str, keys: Prefix) -> int:
        """Tokens of the longest cached prefix of whole pages."""
        cached = 0
        for prefix in self.prefixes(keys):
            if (namespace, prefix) not in self.slots:
                break
            cached = len(prefix)
        return cached

    def num_matched(self, namespace: str, keys: Prefix, limit: int, atomic) -> int:
        """Where a match must end: cached, whole pages, in none of the spans."""
        num_cached = self.num_cached(namespace, keys[:limit])
        return next(
            end
            for end in range(num_cached, -1, -self.page_tokens)
            if not any(start < end < stop for start, stop in atomic)
        )

    def slots_of(self, namespace: str, keys: Prefix) -> list[int]:
        """Slots of a cached prefix."""
        return [s for prefix in self.prefixes(keys) for s in self.slots[namespace, prefix]]

    def explain(self, namespace: str, keys: Prefix, names) -> tuple[int, int, int]:
        """Cached up to, evicted up to, cached elsewhere up to."""
        known = 0
        for prefix in self.prefixes(keys):
            if (namespace, prefix) not in self.slots and (
                namespace,
                prefix,
            ) not in self.evicted:
                break
            known = len(prefix)
        others = [self.num_cached(name, keys) for name in names if name != namespace]
        return self.num_cached(namespace, keys), known, max([known, *others])

    # Who holds what

    def is_pinned(self, namespace: str, prefix: Prefix) -> bool:
        """Whether a pin ends at the prefix or below it."""
        return _is_below(self.pins, namespace, prefix)

    def is_wanted(self, namespace: str, prefix: Prefix) -> bool:
        """Whether a guest hangs at the prefix or below it."""
        return _is_below(self.guests, namespace, prefix)

    def num_evictable(self) -> int:
        """Cached tokens that no pin holds."""
        free = sum(not self.is_pinned(*entry) for entry in self.slots)
        return free * self.page_tokens

    def num_wanted(self) -> int:
        """Those of them that a guest wants."""
        free = sum(self.is_wanted(*e) and not self.is_pinned(*e) for e in self.slots)
        return free * self.page_tokens

    def leaves(self) -> list[tuple[str, Prefix]]:
        """Cached prefixes that no pin holds and below which nothing is cached."""
        above = {(name, prefix[: -self.page_tokens]) for name, prefix in self.slots}
        return [e for e in self.slots if e not in above and not self.is_pinned(*e)]

    # Changes

    def fill(self, namespace: str, keys: Prefix, start: int, slots: list[int]) -> None:
        """Prefixes of keys behind `start` get these slots."""
        page = self.page_tokens
        for prefix in self.prefixes(keys, start):
            at = len(prefix) - page - start
            assert (namespace, prefix) not in self.slots
            self.slots[namespace, prefix] = slots[at : at + page]
            self.evicted.discard((namespace, prefix))

    def forget(self, slots: list[int], *, is_remembered: bool) -> list[tuple[str, Prefix]]:
        """Prefixes whose slots were freed; none is pinned, and what is left is closed."""
        freed = set(slots)
        gone = [entry for entry, held in self.slots.items() if freed & set(held)]
        assert sum(len(self.slots[entry]) for entry in gone) == len(slots) == len(freed)
        for entry in gone:
            assert not self.is_pinned(*entry)
            del self.slots[entry]
            if is_remembered:
                self.evicted.add(entry)
        for name, prefix in self.slots:
            above = prefix[: -self.page_tokens]
            assert not above or (name, above) in self.slots
        return gone


def _is_below(entries: Counter[tuple[str, Prefix]], namespace: str, prefix: Prefix) -> bool:
    return any(
        count and name == namespace and other[: len(prefix)] == prefix
        for (name, other), count in entries.items()
    )
