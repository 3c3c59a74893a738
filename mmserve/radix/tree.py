"""Compressed radix tree over prefix keys.

Source: RadixAttention (SGLang: Efficient Execution of Structured Language Model Programs,
2024), section 3. We differ: a match is pure and only a pin splits; tokens go in when their step
is planned, so rows of one step share them; media tokens are exact keys of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from mmserve.core import LedgerBroken
from mmserve.radix.eviction import LeafQueue
from mmserve.radix.match import Insertion, Match
from mmserve.radix.node import Node

__all__ = ["RadixTree"]

Spans = tuple[tuple[int, int], ...]
_NONE = np.empty(0, dtype=np.int64)


class RadixTree:
    """The prefixes whose KV is in slots, one root a namespace.

    Invariants: every slot is in one node; siblings differ in their first key; `users` of a node
    is at least that of each child; nodes with `users` 0 can all be evicted, leaves first.
    """

    def __init__(self, page_tokens: int = 1) -> None:
        self.page_tokens = page_tokens
        self.num_tokens = 0
        self.num_evictable = 0
        self.num_nodes = 0
        self._roots: dict[str, Node] = {}
        self._tick = 0
        self._leaves = LeafQueue()

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
        parts = self._descend(node, keys, start, limit)
        position = start + sum(num_used for _, num_used in parts)
        end = max(start, self._floor(position, atomic))
        while parts and position > end:
            last, num_used = parts.pop()
            position -= num_used
            if position < end:
                parts.append((last, end - position))
                position = end
        slots = [part.slots[:num_used] for part, num_used in parts]
        deepest, num_used = parts[-1] if parts else (node, node.num_tokens)
        return Match(deepest, num_used, position, np.concatenate(slots) if slots else _NONE)

    def num_evictable_in(self, match: Match) -> int:
        """Tokens that could be evicted now and could not after `pin(match)`. Pure."""
        node: Node | None = match.node
        num_tokens, num_used = 0, match.num_used
        while node is not None and node.users == 0:
            num_tokens += num_used
            node = node.parent
            num_used = node.num_tokens if node is not None else 0
        return num_tokens

    def roots(self) -> dict[str, Node]:
        """Roots by namespace, a copy. Pure."""
        return dict(self._roots)

    def nodes(self) -> Iterator[Node]:
        """All nodes but the roots, parents first. Pure."""
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            if not node.is_root:
                yield node
            stack.extend(node.children.values())

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
                self.num_evictable -= passed.num_tokens
            passed.users += 1
            if passed.namespace is not None:
                known = self._roots.setdefault(passed.namespace, passed)
                if known is not passed:
                    raise LedgerBroken("a match was pinned after its tree had changed")
            passed = passed.parent

    def unpin(self, node: Node) -> None:
        """Take back one `pin` or `hold`. Changes: users and stamps of the path."""
        self._tick += 1
        passed: Node | None = node
        while passed is not None:
            if passed.users <= 0:
                raise LedgerBroken("a node was unpinned more often than pinned")
            passed.users -= 1
            passed.stamp = self._tick
            if passed.users == 0:
                self.num_evictable += passed.num_tokens
                self._offer(passed)
            passed = passed.parent

    # Growth

    def grow(self, node: Node, keys: NDArray[np.int64], slots: NDArray[np.int64]) -> Node:
        """A new leaf below the end of `node`, unpinned; it owns the slots from now on.

        Args:
            node: a pinned node.
            keys: int64 [t], t >= 1; no child of `node` begins with the first.
            slots: int64 [t].

        Changes: the tree.
        """
        first = int(keys[0])
        if first in node.children:
            raise LedgerBroken("a run was put beside one that begins the same")
        self._tick += 1
        leaf = Node(node, keys.copy(), slots.copy(), stamp=self._tick)
        node.children[first] = leaf
        self.num_nodes += 1
        self.num_tokens += leaf.num_tokens
        self.num_evictable += leaf.num_tokens
        self._offer(leaf)
        return leaf

    def insert(
        self, node: Node, keys: NDArray[np.int64], slots: NDArray[np.int64]
    ) -> Insertion:
        """Put tokens below the end of a pinned `node`, sharing what is there.

        Args:
            node: a pinned node.
            keys: int64 [t] of the tokens after it.
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
            leaf = self.grow(above, keys[num_existing:], slots[num_existing:])
            end = Match(leaf, leaf.num_tokens, len(keys), _NONE)
        return Insertion(end, num_existing, found.slots)

    def follow_exactly(self, node: Node, keys: NDArray[np.int64]) -> Match:
        """How far int64 [t] keys go on below `node`, to the token, whatever the page. Pure."""
        parts = self._descend(node, keys, 0, len(keys))
        slots = [part.slots[:num_used] for part, num_used in parts]
        deepest, num_used = parts[-1] if parts else (node, node.num_tokens)
        total = sum(len(part) for part in slots)
        return Match(deepest, num_used, total, np.concatenate(slots) if slots else _NONE)

    # Eviction

    def evict(self, num_tokens: int) -> NDArray[np.int64]:
        """Forget at least `num_tokens` unpinned tokens, oldest leaves first; the slots freed.

        Fewer only if no more can be evicted. The last leaf loses just its end, unless the cut
        would fall inside a picture, which then goes with the whole leaf.

        Changes: the tree. Cost: O(log leaves) a leaf.
        """
        freed: list[NDArray[np.int64]] = []
        num_left = num_tokens
        while num_left > 0 and (node := self._leaves.pop()) is not None:
            cut = node.num_tokens - num_left
            if cut > 0 and node.keys[cut] >= 0:
                freed.append(node.slots[cut:])
                self._trim(node, cut)
                self._offer(node)
            else:
                freed.append(node.slots)
                self._detach(node)
            num_left -= len(freed[-1])
        return np.concatenate(freed) if freed else _NONE

    def prune(self, leaf: Node, above: Node) -> NDArray[np.int64]:
        """Forget the unpinned nodes from `leaf` up to, not including, `above`; the slots freed.

        Stops at a node that is pinned or has children. Used to undo what a failed step put in.
        Changes: the tree.
        """
        freed: list[NDArray[np.int64]] = []
        node = leaf
        while node is not above and node.parent is not None and node.is_evictable_leaf:
            parent = node.parent
            freed.append(node.slots)
            self._detach(node)
            node = parent
        return np.concatenate(freed) if freed else _NONE

    # Accounts

    def verify(self, pinned: Iterable[Node]) -> None:
        """Raise LedgerBroken if users, counts or structure disagree with the pins. Pure."""
        users: dict[Node, int] = {}
        for node in pinned:
            passed: Node | None = node
            while passed is not None:
                users[passed] = users.get(passed, 0) + 1
                passed = passed.parent
        num_tokens = num_evictable = num_nodes = 0
        for node in self.nodes():
            num_nodes += 1
            num_tokens += node.num_tokens
            num_evictable += node.num_tokens if node.users == 0 else 0
            _check_node(node, users.get(node, 0))
        for root in self._roots.values():
            if root.users != users.get(root, 0):
                raise LedgerBroken("pins of a root are miscounted")
        want = (num_tokens, num_evictable, num_nodes)
        got = (self.num_tokens, self.num_evictable, self.num_nodes)
        if want != got:
            message = f"tokens, evictable, nodes are {want}, counted are {got}"
            raise LedgerBroken(message, want=want, got=got)

    # Inside

    def _descend(
        self, node: Node, keys: NDArray[np.int64], start: int, limit: int
    ) -> list[tuple[Node, int]]:
        parts: list[tuple[Node, int]] = []
        position = start
        while position < limit:
            child = node.children.get(int(keys[position]))
            if child is None:
                break
            num_used = _num_equal(child.keys, keys[position:limit])
            parts.append((child, num_used))
            position += num_used
            if num_used < child.num_tokens:
                break
            node = child
        return parts

    def _floor(self, position: int, atomic: Spans) -> int:
        position -= position % self.page_tokens
        for start, end in atomic:
            if start < position < end:
                return start - start % self.page_tokens
        return position

    def _split(self, node: Node, num_upper: int) -> Node:
        """Cut a run in two; the lower half stays `node`, so that pins on its end hold."""
        upper = Node(node.parent, node.keys[:num_upper], node.slots[:num_upper])
        upper.users, upper.stamp, upper.hits = node.users, node.stamp, node.hits
        if node.parent is None:
            raise LedgerBroken("a root was split")
        node.parent.children[int(upper.keys[0])] = upper
        node.keys, node.slots = node.keys[num_upper:], node.slots[num_upper:]
        node.parent = upper
        upper.children[int(node.keys[0])] = node
        self.num_nodes += 1
        return upper

    def _trim(self, node: Node, num_kept: int) -> None:
        num_gone = node.num_tokens - num_kept
        node.keys, node.slots = node.keys[:num_kept], node.slots[:num_kept]
        self.num_tokens -= num_gone
        self.num_evictable -= num_gone

    def _detach(self, node: Node) -> None:
        parent = node.parent
        if parent is None:
            raise LedgerBroken("a root or a forgotten node was taken out")
        del parent.children[int(node.keys[0])]
        node.parent = None
        self.num_nodes -= 1
        self.num_tokens -= node.num_tokens
        self.num_evictable -= node.num_tokens
        self._offer(parent)

    def _offer(self, node: Node) -> None:
        """Note an unpinned leaf for eviction; an unpinned empty root is forgotten."""
        if node.users or node.children:
            return
        if node.namespace is not None:
            self._roots.pop(node.namespace, None)
            return
        self._leaves.offer(node, self.num_nodes)


def _num_equal(run: NDArray[np.int64], keys: NDArray[np.int64]) -> int:
    """Length of the common prefix."""
    length = min(len(run), len(keys))
    differs = run[:length] != keys[:length]
    first = int(differs.argmax())
    return first if differs[first] else length


def _check_node(node: Node, num_users: int) -> None:
    if node.users != num_users:
        message = f"a node has {node.users} users, {num_users} pins hold it"
        raise LedgerBroken(message, want=num_users, got=node.users)
    if len(node.keys) != len(node.slots) or not len(node.keys):
        raise LedgerBroken("a node is empty, or its keys and slots differ in number")
    if node.parent is None or node.parent.children.get(int(node.keys[0])) is not node:
        raise LedgerBroken("a node is not its parent's child")
