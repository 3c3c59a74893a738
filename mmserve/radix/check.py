"""Checks of the tree's books against its nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from mmserve.core import LedgerBroken
from mmserve.radix.branch import all_below, label_of
from mmserve.radix.node import Node

__all__ = ["check_tree"]


def check_tree(
    roots: Iterable[Node], pinned: Iterable[Node], page_tokens: int
) -> tuple[int, ...]:
    """Raise LedgerBroken unless the nodes agree with each other and with the pins.

    Tokens, evictable and wanted ones, nodes with KV, ghosts, remembered tokens. Pure.
    """
    users: Counter[Node] = Counter()
    for node in pinned:
        passed: Node | None = node
        while passed is not None:
            users[passed] += 1
            passed = passed.parent
    roots = tuple(roots)
    for node in all_below(roots):
        _check_node(node, users[node], page_tokens)
    if any(root.users != users[root] for root in roots):
        raise LedgerBroken("pins of a root are miscounted")
    return _count(all_below(roots))


def _count(nodes: Iterable[Node]) -> tuple[int, ...]:
    """Tokens, evictable and wanted ones, nodes with KV, ghosts, remembered tokens. Pure."""
    num_tokens = num_evictable = num_wanted = num_nodes = num_ghosts = num_remembered = 0
    for node in nodes:
        if node.is_ghost:
            num_ghosts += 1
            num_remembered += node.num_tokens if node.is_remembered else 0
            continue
        num_nodes += 1
        num_tokens += node.num_tokens
        if node.users == 0:
            num_evictable += node.num_tokens
            num_wanted += node.num_tokens if node.guests else 0
    return num_tokens, num_evictable, num_wanted, num_nodes, num_ghosts, num_remembered


def _check_node(node: Node, num_users: int, page_tokens: int) -> None:
    """Raise LedgerBroken unless a node agrees with its neighbours and its pins. Pure."""
    parent = node.parent
    if node.users != num_users:
        message = f"a node has {node.users} users, {num_users} pins hold it"
        raise LedgerBroken(message, want=num_users, got=node.users)
    if not node.num_tokens or node.num_tokens % page_tokens:
        raise LedgerBroken("a node is empty, or not of whole pages")
    if node.slots is not None and len(node.keys) != len(node.slots):
        raise LedgerBroken("keys and slots of a node differ in number")
    if parent is None or parent.children.get(label_of(node.keys, 0, page_tokens)) is not node:
        raise LedgerBroken("a node is not its parent's child")
    if node.depth != parent.depth + node.num_tokens:
        raise LedgerBroken("the depth of a node is wrong")
    _check_kind(node, parent)


def _check_kind(node: Node, parent: Node) -> None:
    kids = node.children.values()
    if not node.is_ghost and (parent.is_ghost or node.is_remembered):
        raise LedgerBroken("a node with KV lies below a ghost, or is remembered as evicted")
    if node.is_ghost and (node.users or not (node.guests or node.is_remembered or kids)):
        raise LedgerBroken("a ghost is pinned, or nobody wants it")
    if node.num_resident != sum(not kid.is_ghost for kid in kids):
        raise LedgerBroken("children with KV are miscounted")
    below: Counter[str] = Counter()
    for kid in kids:
        below.update(kid.guests)
    if sum(node.guests.values()) != below.total() + node.num_own:
        raise LedgerBroken("guests are miscounted")
    if any(node.guests.get(client, 0) < count for client, count in below.items()):
        raise LedgerBroken("guests of a client are miscounted")
