"""Evicted prefixes are remembered for a while, so that a miss can be explained."""

import numpy as np
import pytest

from mmserve.radix import RadixTree


def keys_of(values) -> np.ndarray:
    """Keys from values."""
    return np.array(list(values), dtype=np.int64)


def put(tree, values, first_slot=0, namespace=""):
    """Give a run KV."""
    keys = keys_of(values)
    root = tree.pin(tree.match(namespace, keys, 0))
    tree.insert(root, keys, np.arange(first_slot, first_slot + len(keys)))
    tree.unpin(root)


def explain(tree, values, namespace=""):
    """Where keys stop being cached, being remembered, being cached elsewhere."""
    keys = keys_of(values)
    return tree.explain(namespace, keys, len(keys))


def test_nothing_is_known_of_what_never_came():
    """All three positions are 0, and asking leaves no trace."""
    tree = RadixTree(history_tokens=100)
    assert explain(tree, [1, 2]) == (0, 0, 0)
    assert tree.roots() == {}


def test_an_evicted_end_is_remembered():
    """What is left is cached, what went is known, and where they part is told."""
    tree = RadixTree(history_tokens=100)
    put(tree, [1, 2, 3, 4])
    tree.evict(2)
    assert explain(tree, [1, 2, 3, 4, 5]) == (2, 4, 4)
    assert explain(tree, [1, 2, 3, 9]) == (2, 3, 3)


def test_what_comes_back_is_not_evicted_any_more():
    """Computed again, tokens are cached; what is still gone stays remembered."""
    tree = RadixTree(history_tokens=100)
    put(tree, [1, 2, 3, 4])
    tree.evict(4)
    put(tree, [1, 2], first_slot=10)
    assert explain(tree, [1, 2, 3, 4]) == (2, 4, 4)
    tree.verify([])


def test_a_failed_step_is_not_remembered():
    """What is pruned was never there."""
    tree = RadixTree(history_tokens=100)
    root = tree.pin(tree.match("", keys_of([1]), 0))
    (leaf,) = tree.fill(root, keys_of([1, 2]), keys_of([0, 1]))
    tree.prune(leaf, root)
    assert explain(tree, [1, 2]) == (0, 0, 0)
    tree.verify([root])


def test_another_namespace_has_it():
    """Tokens cached under another salt are told of; evicted there, they are not."""
    tree = RadixTree(history_tokens=100)
    put(tree, [1, 2, 3], namespace="x")
    assert explain(tree, [1, 2, 9]) == (0, 0, 2)
    tree.evict(3)
    assert explain(tree, [1, 2, 9]) == (0, 0, 0)
    assert explain(tree, [1, 2, 9], namespace="x") == (0, 2, 2)


def test_only_the_namespaces_opened_last_are_looked_at():
    """The ninth namespace back is not, so that many salts cost no more than eight."""
    tree = RadixTree()
    for number in range(9):
        put(tree, [number, 1], first_slot=2 * number, namespace=f"x{number}")
    assert explain(tree, [0, 1]) == (0, 0, 0)
    assert explain(tree, [1, 1]) == (0, 0, 2)


def test_explanations_end_at_pages():
    """Like matches, with pages of 4 tokens."""
    tree = RadixTree(page_tokens=4, history_tokens=100)
    put(tree, range(12))
    tree.evict(3)
    assert explain(tree, range(11)) == (8, 8, 8)
    assert explain(tree, range(12)) == (8, 12, 12)


@pytest.mark.parametrize("limit", [0, 1, 3, 5])
def test_the_memory_is_bounded(limit):
    """The oldest are forgotten first, whole runs at a time, with their ghosts."""
    tree = RadixTree(history_tokens=limit)
    for first in range(6):
        put(tree, [first, 9], first_slot=2 * first)
        tree.evict(2)
    num_kept = limit // 2
    assert tree.num_ghosts == num_kept
    known = [explain(tree, [first, 9])[1] for first in range(6)]
    assert known == [0] * (6 - num_kept) + [2] * num_kept
    tree.verify([])


def test_a_memory_of_nothing_leaves_no_ghosts():
    """Without history an evicted namespace is gone."""
    tree = RadixTree()
    put(tree, [1, 2], namespace="x")
    tree.evict(2)
    assert (tree.num_ghosts, tree.roots()) == (0, {})
