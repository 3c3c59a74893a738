"""Compressed radix tree over prefix keys.

Source: RadixAttention (SGLang: Efficient Execution of Structured Language Model Programs,
2024), section 3. We differ: a match is pure and only a pin splits; tokens go in when their step
is planned, so rows of one step share them; media tokens are exact keys of their own; waiting
sequences hang in the tree, as ghosts where their prefix has no KV yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from mmserve.core import LedgerBroken
from mmserve.radix.branch import all_below, descend, join, label_of, num_unpinned, split
from mmserve.radix.check import check_tree
from mmserve.radix.eviction import LeafQueue, Worth, worth_of
from mmserve.radix.explain import MediaCount, explain
from mmserve.radix.history import History
from mmserve.radix.interner import media_start
from mmserve.radix.match import Insertion, Match
from mmserve.radix.node import Node
from mmserve.radix.watch import NodeWatcher, Unwatched

__all__ = ["RadixTree"]

Spans = tuple[tuple[int, int], ...]
_NONE = np.empty(0, dtype=np.int64)


class RadixTree:
    """The prefixes whose KV is in slots, one root a namespace, and those that are wished for.

    Metadata: 16 bytes a token (its key and its slot) and about 600 bytes a node; nodes are
    joined when nothing begins or ends between them, so there is at most one for each place
    where prefixes part, end, or are held.

    Invariants: every slot is in one node; siblings differ in their first page; runs are whole
    pages; below a ghost there are only ghosts; `users` of a node is at least that of each
    child; nodes with `users` 0 can all be evicted, leaves first.

    Args:
        page_tokens: tokens that are stored, matched and evicted together.
        worth: which leaf is evicted first; least recently used if None.
        history_tokens: evicted tokens that are remembered.
    """

    def __init__(
        self, page_tokens: int = 1, worth: Worth | None = None, history_tokens: int = 0
    ) -> None:
        self.page_tokens = page_tokens
        self.num_tokens = 0
        self.num_evictable = 0
        self.num_wanted = 0
        """Evictable tokens that a guest hangs below, so that it will want them."""
        self.num_nodes = 0
        self.num_ghosts = 0
        self.num_evicted_tokens = 0
        """Tokens evicted since the start."""
        self.watcher: NodeWatcher = Unwatched()
        self._roots: dict[str, Node] = {}
        self._tick = 0
        self._leaves = LeafQueue(worth or worth_of("lru", 0))
        self._history = History(history_tokens)
        self._media = MediaCount()

    # Questions

    def match(
        self, namespace: str, keys: NDArray[np.int64], limit: int, atomic: Spans = ()
    ) -> Match:
        """Longest prefix of keys [0, limit) whose KV is here.

        Args:
            namespace: what may share with each other.
            keys: int64 [n], from `prefix_keys`.
            limit: most tokens to match; n - 1 leaves one to compute, which logits need.
            atomic: [start, end) of spans that must not be cut.

        Pure. The slots are safe to use only after `pin(match)`.
        Cost: a dictionary look-up and a vector comparison a node.
        """
        root = self._roots.get(namespace)
        if root is None:
            root = Node(None, _NONE, _NONE, namespace=namespace)
        return self.follow(root, keys, 0, limit, atomic)

    def follow(
        self,
        node: Node,
        keys: NDArray[np.int64],
        start: int,
        limit: int,
        atomic: Spans = (),
    ) -> Match:
        """Like `match`, from the end of `node` on, which is where keys [0, start) end. Pure."""
        parts = descend(node, keys, start, limit, self.page_tokens, ghosts=False)
        position = start + sum(num_used for _, num_used in parts)
        end = max(start, self._floor(position, atomic))
        while parts and position > end:
            last, num_used = parts.pop()
            position -= num_used
            if position < end:
                parts.append((last, end - position))
                position = end
        deepest, num_used = parts[-1] if parts else (node, node.num_tokens)
        return Match(deepest, num_used, position, _slots_of(parts))

    def explain(
        self, namespace: str, keys: NDArray[np.int64], limit: int
    ) -> tuple[int, int, int]:
        """Where keys [0, limit) stop being cached, having been cached, being cached elsewhere.

        Three positions, none before the one before it: KV is here up to the first, was here and
        evicted up to the second, is in another namespace up to the third. The eight namespaces
        opened last are looked at. Pure. Cost: as a match, for each namespace.
        """
        return explain(self._roots, namespace, keys[:limit], self.page_tokens)

    def num_media_tokens(self, item: int) -> int:
        """Tokens of a media item with KV, wherever they stand. Pure."""
        return self._media.num_tokens(item)

    def num_evictable_in(self, match: Match) -> int:
        """Tokens that could be evicted now and could not after `pin(match)`. Pure."""
        return num_unpinned(match.node, match.num_used)

    def roots(self) -> dict[str, Node]:
        """Roots by namespace, a copy. Pure."""
        return dict(self._roots)

    def nodes(self) -> Iterator[Node]:
        """All nodes but the roots, ghosts too, parents first. Pure."""
        return all_below(self._roots.values())

    # Pins

    def pin(self, match: Match) -> Node:
        """Keep the matched tokens; the node that ends where the match ends.

        Changes: splits the node if the match ends inside it; users and hits of the path.
        """
        node = match.node
        if not match.is_whole:
            node = self._split(node, match.num_used)
        self.hold(node)
        num_left = len(match.slots)
        passed: Node | None = node
        while passed is not None and num_left > 0:
            passed.hits += 1
            num_left -= passed.num_tokens
            passed = passed.parent
        return node

    def hold(self, node: Node) -> None:
        """Pin the path down to the end of a node. Changes: users of the path."""
        passed: Node | None = node
        while passed is not None:
            if passed.users == 0:
                self._count_evictable(passed, -1)
            passed.users += 1
            if passed.namespace is not None:
                known = self._roots.setdefault(passed.namespace, passed)
                if known is not passed:
                    raise LedgerBroken("a match was pinned after its tree had changed")
            passed = passed.parent

    def unpin(self, node: Node) -> None:
        """Take back one `pin` or `hold`. Changes: users, stamps and worth of the path."""
        self._tick += 1
        passed: Node | None = node
        while passed is not None:
            if passed.users <= 0:
                raise LedgerBroken("a node was unpinned more often than pinned")
            passed.users -= 1
            passed.stamp = self._tick
            passed.worth = self._leaves.worth.rate(passed)
            if passed.users == 0:
                self._count_evictable(passed, 1)
                self._offer(passed)
            passed = passed.parent

    def ancestor(self, node: Node, depth: int) -> Node:
        """The node on the way to `node` that ends at `depth`. Changes: may split one."""
        while node.depth - node.num_tokens >= depth and node.parent is not None:
            node = node.parent
        num_upper = depth - (node.depth - node.num_tokens)
        return node if num_upper == node.num_tokens else self._split(node, num_upper)

    def tidy(self, node: Node) -> None:
        """Join a node with its only child, and with the one above, if nothing holds them apart.

        Changes: the tree; `node` keeps its end. Cost: copies the joined runs.
        """
        if node.is_root:
            return
        if len(node.children) == 1:
            self._join(next(iter(node.children.values())))
        if node.parent is not None:
            self._join(node)
        if node.parent is not None and not node.parent.is_root:
            self._join(node.parent)

    # Guests

    def hang(self, namespace: str, keys: NDArray[np.int64], client: str) -> Node:
        """Hang a waiting sequence where its keys end, cut to whole pages; that node.

        Ghosts stand for the tokens that have no KV. Changes: the tree; may split.
        Cost: as a match, and a count a node.
        """
        root = self._roots.get(namespace)
        if root is None:
            root = Node(None, _NONE, _NONE, namespace=namespace)
            self._roots[namespace] = root
        node, position = root, 0
        limit = len(keys) - len(keys) % self.page_tokens
        for part, num_used in descend(root, keys, 0, limit, self.page_tokens, ghosts=True):
            position += num_used
            node = part if num_used == part.num_tokens else self._split(part, num_used)
        if position < limit:
            ghost = Node(node, keys[position:limit], None, depth=limit)
            node.children[label_of(keys, position, self.page_tokens)] = ghost
            self.num_ghosts += 1
            node = ghost
        node.num_own += 1
        passed: Node | None = node
        while passed is not None:
            if not passed.guests and not passed.users and not passed.is_ghost:
                self.num_wanted += passed.num_tokens
            passed.guests[client] = passed.guests.get(client, 0) + 1
            passed = passed.parent
        return node

    def unhang(self, node: Node, client: str) -> None:
        """Take one guest away. Changes: the tree; ghosts that nobody wants are gone."""
        node.num_own -= 1
        passed: Node | None = node
        while passed is not None:
            left = passed.guests[client] - 1
            if left:
                passed.guests[client] = left
            else:
                del passed.guests[client]
                if not passed.guests:
                    if not passed.users and not passed.is_ghost:
                        self.num_wanted -= passed.num_tokens
                    self.watcher.deserted(passed)
                    self._offer(passed)
            passed = passed.parent
        self._drop_idle(node)

    # Marks

    def mark(self, match: Match, mark: tuple[str, int]) -> None:
        """Leave a note where a match ends, until its tokens are evicted.

        Changes: the node, if the match ends with it; it stays apart from what is put below.
        """
        if match.is_whole and not match.node.is_root:
            match.node.mark = mark

    def mark_above(self, node: Node) -> tuple[str, int] | None:
        """The note of the last node with KV on the way to `node`. Pure."""
        while node.is_ghost and node.parent is not None:
            node = node.parent
        return node.mark

    # Growth

    def fill(
        self, node: Node, keys: NDArray[np.int64], slots: NDArray[np.int64]
    ) -> tuple[Node, ...]:
        """Put tokens below the end of `node`; the nodes that hold them now, top first.

        Args:
            node: a pinned node.
            keys: int64 [t], t >= 1, whole pages; no child of `node` with KV begins like them.
            slots: int64 [t], owned by the tree from now on.

        Changes: the tree. Ghosts on the way get slots, and may be split; nothing is pinned.
        """
        filled: list[Node] = []
        self._tick += 1
        position = 0
        for ghost, num_used in descend(node, keys, 0, len(keys), self.page_tokens, ghosts=True):
            if not ghost.is_ghost:
                raise LedgerBroken("a run was put beside one that begins the same")
            node = ghost if num_used == ghost.num_tokens else self._split(ghost, num_used)
            self._fill_ghost(node, slots[position : position + num_used])
            filled.append(node)
            position += num_used
        if position < len(keys):
            leaf = Node(
                node, keys[position:].copy(), None, depth=node.depth + len(keys) - position
            )
            node.children[label_of(keys, position, self.page_tokens)] = leaf
            self.num_ghosts += 1
            self._fill_ghost(leaf, slots[position:])
            filled.append(leaf)
        for done in filled:
            if done.guests:
                self.watcher.filled(done)
        self._offer(filled[-1])
        return tuple(filled)

    def insert(
        self, node: Node, keys: NDArray[np.int64], slots: NDArray[np.int64]
    ) -> Insertion:
        """Put tokens below the end of a pinned `node`, sharing what is there.

        Args:
            node: a pinned node.
            keys: int64 [t] of the tokens after it, whole pages.
            slots: int64 [t]; the tree owns those of tokens it did not have.

        Changes: the tree; may split. Nothing new is pinned.
        """
        found = self.follow_exactly(node, keys)
        num_existing = len(found.slots)
        end = found
        if num_existing < len(keys):
            above = found.node
            if not found.is_whole:
                above = self._split(above, found.num_used)
            last = self.fill(above, keys[num_existing:], slots[num_existing:])[-1]
            end = Match(last, last.num_tokens, len(keys), _NONE)
        return Insertion(end, num_existing, found.slots)

    def follow_exactly(self, node: Node, keys: NDArray[np.int64]) -> Match:
        """How far int64 [t] keys go on below `node`, spans or not. Pure."""
        parts = descend(node, keys, 0, len(keys), self.page_tokens, ghosts=False)
        deepest, num_used = parts[-1] if parts else (node, node.num_tokens)
        slots = _slots_of(parts)
        return Match(deepest, num_used, len(slots), slots)

    # Eviction

    def evict(self, num_tokens: int) -> NDArray[np.int64]:
        """Forget at least `num_tokens` unpinned tokens, least worth first; the slots freed.

        Fewer only if no more can be evicted. The last leaf loses just its end, and never a part
        of a picture. What goes is remembered.

        Changes: the tree. Cost: O(log leaves) a leaf.
        """
        freed: list[NDArray[np.int64]] = []
        num_left = num_tokens
        while num_left > 0 and (node := self._leaves.pop()) is not None:
            cut = self._floor(max(node.num_tokens - num_left, 0), ())
            while cut > 0 and (start := media_start(node.keys, cut)) < cut:
                cut = self._floor(start, ())  # a page may begin in the picture before
            if cut > 0:
                self._split(node, cut)
            node.is_again = True
            self._leaves.worth.note_evicted(node)
            self.num_evicted_tokens += node.num_tokens
            slots = self._empty(node)
            self._history.remember(node)
            freed.append(slots)
            num_left -= len(slots)
            self._drop_idle(node)
            while (oldest := self._history.take_oldest()) is not None:
                self._drop_idle(oldest)
        return np.concatenate(freed) if freed else _NONE

    def prune(self, leaf: Node, above: Node) -> NDArray[np.int64]:
        """Forget the unpinned nodes from `leaf` up to, not including, `above`; the slots freed.

        Stops at a node that is pinned or has children with KV. Used to undo what a failed step
        put in: nothing is remembered. Changes: the tree.
        """
        freed: list[NDArray[np.int64]] = []
        node = leaf
        while node is not above and node.parent is not None and node.is_evictable_leaf:
            parent = node.parent
            freed.append(self._empty(node))
            self._drop_idle(node)
            node = parent
        return np.concatenate(freed) if freed else _NONE

    # Accounts

    def verify(self, pinned: Iterable[Node]) -> None:
        """Raise LedgerBroken if users, counts or structure disagree with the pins. Pure."""
        want = check_tree(self._roots.values(), pinned, self.page_tokens)
        got = (
            self.num_tokens,
            self.num_evictable,
            self.num_wanted,
            self.num_nodes,
            self.num_ghosts,
            self._history.num_tokens,
        )
        if want != got:
            names = "tokens, evictable, wanted, nodes, ghosts, remembered"
            raise LedgerBroken(f"{names} are {want}, counted are {got}", want=want, got=got)

    # Inside

    def _floor(self, position: int, atomic: Spans) -> int:
        position -= position % self.page_tokens
        for start, end in reversed(atomic):  # a page may begin in the picture before
            if start < position < end:
                position = start - start % self.page_tokens
        return position

    def _split(self, node: Node, num_upper: int) -> Node:
        upper = split(node, num_upper, self.page_tokens)
        if node.is_ghost:
            self.num_ghosts += 1
        else:
            self.num_nodes += 1
        if node.is_remembered:
            self._history.note_split(upper, node)
        if node.guests:
            self.watcher.was_split(upper, node)
        return upper

    def _join(self, node: Node) -> None:
        upper = join(node, self.page_tokens)
        if upper is None:
            return
        if node.is_ghost:
            self.num_ghosts -= 1
        else:
            self.num_nodes -= 1
            self._offer(node)
        if node.is_remembered:
            self._history.note_joined(upper, node)
        if node.guests:
            self.watcher.was_joined(upper, node)

    def _fill_ghost(self, node: Node, slots: NDArray[np.int64]) -> None:
        if node.is_remembered:
            self._history.forget(node)
        node.keys = node.keys.copy()  # a view would keep a whole prompt
        node.slots = slots.copy()
        node.stamp = self._tick
        node.worth = self._leaves.worth.rate(node)
        self.num_ghosts -= 1
        self.num_nodes += 1
        self.num_tokens += node.num_tokens
        self._count_evictable(node, 1)
        self._media.add(node.keys)
        if node.parent is not None:
            node.parent.num_resident += 1

    def _empty(self, node: Node) -> NDArray[np.int64]:
        """Make a leaf a ghost; its slots."""
        slots, parent = node.slots, node.parent
        if slots is None or parent is None:
            raise LedgerBroken("a root or a ghost was evicted")
        node.slots, node.hits, node.mark = None, 0, None
        self.num_nodes -= 1
        self.num_ghosts += 1
        self.num_tokens -= node.num_tokens
        self._count_evictable(node, -1)
        self._media.remove(node.keys)
        parent.num_resident -= 1
        if node.guests:
            self.watcher.emptied(node)
        self._offer(parent)
        return slots

    def _count_evictable(self, node: Node, sign: int) -> None:
        self.num_evictable += sign * node.num_tokens
        if node.guests:
            self.num_wanted += sign * node.num_tokens

    def _drop_idle(self, node: Node) -> None:
        """Take out a ghost that nobody wants or remembers, and those above; join the rest."""
        while node.is_ghost and not (node.guests or node.children or node.is_remembered):
            parent = node.parent
            if parent is None:
                return
            del parent.children[label_of(node.keys, 0, self.page_tokens)]
            node.parent = None
            self.num_ghosts -= 1
            node = parent
        self._offer(node)
        self.tidy(node)

    def _offer(self, node: Node) -> None:
        """Note an unpinned leaf for eviction; an unpinned empty root is forgotten."""
        if node.users or node.num_resident or node.is_ghost:
            return
        if node.namespace is None:
            self._leaves.offer(node, self.num_nodes)
        elif not node.children and not node.guests:
            self._roots.pop(node.namespace, None)


def _slots_of(parts: list[tuple[Node, int]]) -> NDArray[np.int64]:
    slots = [part.slots[:num_used] for part, num_used in parts if part.slots is not None]
    return np.concatenate(slots) if slots else _NONE
