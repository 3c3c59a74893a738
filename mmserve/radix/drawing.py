"""The tree as text a person can read, 80 columns wide.

radix tree: 3 nodes, 7 hits, 0 tokens evicted so far
58 tokens = 52 pinned + 6 evictable
tokens    hits  pins  wait
                            default
    46       7     8        `- text 10, picture #0 [0, 36)
     6             1           |- text 6
     6                         `- text 6
"""

from __future__ import annotations

from collections.abc import Iterator

from mmserve.core.svg import cut
from mmserve.radix.excerpt import (
    Branch,
    Sums,
    excerpt,
    meaning,
    name_of,
    num_waiting,
    state_of,
    sums_of,
)
from mmserve.radix.tree import RadixTree

__all__ = ["draw", "headline"]

_MAX_LINES = 100
_COLUMNS = 80
_HEAD = "tokens    hits  pins  wait"
_MAX_INDENT = 30


def draw(tree: RadixTree) -> str:
    """The tree, a line a node: tokens, hits, pins, who waits, what the tokens stand for. Pure.

    Cost: O(nodes), about 0.3 us each, and a few microseconds a line.
    """
    lines = [*headline(tree, sums_of(tree)), _HEAD]
    for namespace, branch in excerpt(tree, _MAX_LINES).items():
        waiting = num_waiting(branch.node)
        lines.append(_line("", 0, 0, waiting, name_of(namespace)))
        lines.extend(_below(branch))
    num_roots = len(tree.roots())
    if num_roots > _MAX_LINES:
        lines.append(f"... {num_roots - _MAX_LINES} more namespaces")
    return "\n".join(line.rstrip() for line in lines)


def headline(tree: RadixTree, sums: Sums) -> list[str]:
    """What the tree holds, has forgotten and is yet to get, in two or three lines. Pure."""
    num_pinned = tree.num_tokens - tree.num_evictable
    lines = [
        f"radix tree: {tree.num_nodes:,} nodes, {sums.hits:,} hits, "
        f"{tree.num_evicted_tokens:,} tokens evicted so far",
        f"{tree.num_tokens:,} tokens = {num_pinned:,} pinned + "
        f"{tree.num_evictable:,} evictable",
    ]
    notes = []
    if sums.evicted_tokens:
        notes.append(f"{sums.evicted_tokens:,} evicted tokens remembered")
    if sums.waiting:
        notes.append(f"{sums.waiting:,} wait for {sums.wished_tokens:,} tokens not cached")
    return [*lines, "; ".join(notes)] if notes else lines


def _below(root: Branch) -> Iterator[str]:
    stack: list[tuple[Branch | int, str, bool]] = _entries(root, "")
    while stack:
        entry, indent, is_last = stack.pop()
        start = f"{indent}{'`- ' if is_last else '|- '}"
        if len(start) > _MAX_INDENT:
            start = ".. " + start[3 - _MAX_INDENT :]
        if isinstance(entry, int):
            yield _line("", 0, 0, 0, f"{start}... {entry:,} more")
            continue
        node = entry.node
        state = state_of(node)
        is_ghost = node.slots is None
        tokens = f"({node.num_tokens:,})" if is_ghost else f"{node.num_tokens:,} "
        label = (f"{state}: " if is_ghost else "") + meaning(node.keys)
        room = _COLUMNS - len(_HEAD) - 2 - len(start)
        yield _line(tokens, node.hits, node.users, num_waiting(node), start + cut(label, room))
        stack.extend(_entries(entry, indent + ("   " if is_last else "|  ")))


def _entries(branch: Branch, indent: str) -> list[tuple[Branch | int, str, bool]]:
    """What hangs below, as a stack wants it: the last to be drawn first."""
    below: list[Branch | int] = [
        *branch.children,
        *([branch.num_hidden] * bool(branch.num_hidden)),
    ]
    return [(entry, indent, entry is below[-1]) for entry in reversed(below)]


def _line(tokens: str, hits: int, users: int, waiting: int, tail: str) -> str:
    counts = "".join(f"{count:,}".rjust(6) if count else " " * 6 for count in (users, waiting))
    return f"{tokens:>7}{f'{hits:,}' if hits else '':>7}{counts}  {tail}"
