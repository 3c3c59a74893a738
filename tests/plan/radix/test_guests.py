"""Those who wait hang in the tree as guests, on ghosts where nothing is cached."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmserve.core import LedgerBroken
from mmserve.radix import RadixTree


def keys_of(values) -> np.ndarray:
    """Keys from values."""
    return np.array(list(values), dtype=np.int64)


def cached_tree(*runs, page_tokens=1):
    """A tree in which these runs have KV, slots counted on."""
    tree, slot = RadixTree(page_tokens), 0
    for run in runs:
        keys = keys_of(run)
        root = tree.pin(tree.match("", keys, 0))
        num_tokens = len(keys)
        tree.insert(root, keys, np.arange(slot, slot + num_tokens))
        tree.unpin(root)
        slot += num_tokens
    return tree


class Listener:
    """Writes down what the tree tells."""

    def __init__(self):
        self.news = []

    def filled(self, node):
        """A ghost has slots."""
        self.news.append(("filled", node.depth))

    def emptied(self, node):
        """A node has none any more."""
        self.news.append(("emptied", node.depth))

    def was_split(self, upper, lower):
        """A node was cut."""
        self.news.append(("split", upper.depth, lower.depth))

    def was_joined(self, upper, lower):
        """Two nodes are one."""
        self.news.append(("joined", lower.depth))

    def deserted(self, node):
        """Nobody waits here."""
        self.news.append(("deserted", node.depth))


def test_a_guest_of_cached_tokens_hangs_on_their_node():
    """No ghost is made where all keys have KV; a run is cut where the guest's keys end."""
    tree = cached_tree([1, 2, 3, 4])
    hook = tree.hang("", keys_of([1, 2]), "a")
    assert (hook.is_ghost, hook.keys.tolist(), hook.num_own) == (False, [1, 2], 1)
    assert tree.num_ghosts == 0
    tree.verify([])


def test_what_is_not_cached_hangs_as_a_ghost():
    """Two guests with a common wish share a ghost up to where they part."""
    tree = cached_tree([1, 2])
    first = tree.hang("", keys_of([1, 2, 5, 6, 7]), "a")
    second = tree.hang("", keys_of([1, 2, 5, 6, 8]), "b")
    assert first.parent is second.parent
    assert first.parent.is_ghost
    assert first.parent.keys.tolist() == [5, 6]
    assert first.parent.guests == {"a": 1, "b": 1}
    tree.verify([])


def test_a_match_does_not_see_ghosts():
    """Wishes have no KV."""
    tree = cached_tree([1, 2])
    tree.hang("", keys_of([1, 2, 5, 6]), "a")
    assert tree.match("", keys_of([1, 2, 5, 6]), 4).num_tokens == 2


def test_wishes_nobody_has_any_more_are_gone():
    """With the last guest its ghosts go, and runs cut for it are whole again."""
    tree = cached_tree([1, 2, 3, 4])
    hooks = [tree.hang("", keys_of(keys), "a") for keys in ([1, 2, 9], [1, 2, 9, 9], [1, 2])]
    assert (tree.num_nodes, tree.num_ghosts) == (2, 2)
    for hook in hooks:
        tree.unhang(hook, "a")
    assert (tree.num_nodes, tree.num_ghosts) == (1, 0)
    tree.verify([])


def test_a_namespace_with_a_guest_is_kept():
    """A root goes with its last token and its last guest."""
    tree = RadixTree()
    hook = tree.hang("tenant", keys_of([1]), "a")
    assert list(tree.roots()) == ["tenant"]
    tree.unhang(hook, "a")
    assert tree.roots() == {}


def test_a_short_prompt_hangs_on_the_root():
    """With pages of 4, three tokens make no page."""
    tree = RadixTree(page_tokens=4)
    hook = tree.hang("", keys_of([1, 2, 3]), "a")
    assert hook.is_root
    tree.unhang(hook, "a")
    assert tree.roots() == {}


def test_filling_gives_slots_to_ghosts():
    """Tokens computed along a wish turn its ghosts into nodes, cut where the tokens end."""
    tree = RadixTree()
    hook = tree.hang("", keys_of([1, 2, 3, 4]), "a")
    root = tree.pin(tree.match("", keys_of([1]), 0))
    (node,) = tree.fill(root, keys_of([1, 2, 3]), keys_of([7, 8, 9]))
    assert (node.is_ghost, hook.is_ghost) == (False, True)
    assert (node.keys.tolist(), hook.keys.tolist()) == ([1, 2, 3], [4])
    assert (tree.num_nodes, tree.num_ghosts) == (1, 1)
    tree.verify([root])


def test_filling_past_a_wish_adds_what_it_lacks():
    """Where the ghosts end, a new node begins."""
    tree = RadixTree()
    tree.hang("", keys_of([1, 2]), "a")
    root = tree.pin(tree.match("", keys_of([1]), 0))
    nodes = tree.fill(root, keys_of([1, 2, 3, 4]), keys_of(range(4)))
    assert [node.keys.tolist() for node in nodes] == [[1, 2], [3, 4]]
    tree.verify([root])


def test_an_evicted_wish_stays_a_ghost():
    """Guests of evicted tokens keep their place."""
    tree = cached_tree([1, 2, 3])
    hook = tree.hang("", keys_of([1, 2, 3]), "a")
    assert tree.evict(3).tolist() == [0, 1, 2]
    assert (hook.is_ghost, hook.depth, tree.num_ghosts) == (True, 3, 1)
    tree.unhang(hook, "a")
    assert tree.num_ghosts == 0


def test_all_changes_to_nodes_with_guests_are_told():
    """Splits, joins, fills, evictions and departures, once each and in order."""
    tree = RadixTree()
    tree.watcher = listener = Listener()
    low = tree.hang("", keys_of([1, 2, 3, 4]), "a")
    high = tree.hang("", keys_of([1, 2]), "a")
    root = tree.pin(tree.match("", keys_of([1]), 0))
    tree.fill(root, keys_of([1, 2]), keys_of([0, 1]))
    tree.unpin(root)
    tree.evict(2)
    tree.unhang(high, "a")
    tree.unhang(low, "a")
    assert listener.news == [
        ("split", 2, 4),
        ("filled", 2),
        ("emptied", 2),
        ("joined", 4),
        ("deserted", 4),
        ("deserted", 0),
    ]


def test_nodes_without_guests_are_not_told_of():
    """Whoever keeps books of those who wait hears of nothing else."""
    tree = cached_tree([1, 2, 3])
    tree.watcher = listener = Listener()
    tree.unpin(tree.pin(tree.match("", keys_of([1, 2]), 2)))
    tree.evict(3)
    assert listener.news == []


@pytest.mark.parametrize("page_tokens", [1, 2, 5])
@settings(max_examples=40, deadline=None)
@given(moves=st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=9), st.booleans())))
def test_guests_come_and_go_without_a_trace(page_tokens, moves):
    """Whatever hangs, counts add up; when all have gone, the tree is as it was."""
    tree = cached_tree([0, 1, 0, 1, 2, 2, 0, 0, 1, 1], page_tokens=page_tokens)
    before = [(node.depth, node.keys.tolist()) for node in tree.nodes()]
    hooks = []
    for keys, goes in moves:
        if goes and hooks:
            tree.unhang(*hooks.pop(len(keys) % len(hooks)))
        else:
            client = "ab"[len(keys) % 2]
            hooks.append((tree.hang("", keys_of(keys), client), client))
        tree.verify([])
    while hooks:
        tree.unhang(*hooks.pop(0))
        tree.verify([])
    assert [(node.depth, node.keys.tolist()) for node in tree.nodes()] == before


def test_verify_sees_miscounted_guests():
    """A guest too many at a node is found."""
    tree = RadixTree()
    hook = tree.hang("", keys_of([1]), "a")
    hook.guests["a"] += 1
    with pytest.raises(LedgerBroken):
        tree.verify([])
