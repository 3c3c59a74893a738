"""The tree can be looked at."""

import numpy as np

from mmserve.radix import RadixTree, draw


def test_a_tree_with_a_picture():
    """Nodes are drawn with tokens, pictures, hits and pins."""
    tree = RadixTree()
    keys = np.array([5, 6, -1, -2, -3, 9], dtype=np.int64)
    root = tree.pin(tree.match("", keys, 0))
    tree.insert(root, keys, np.arange(6))
    tree.insert(root, np.array([5, 6, -1, -2, -3, 7, 8]), np.arange(10, 17))
    held = tree.pin(tree.match("", keys, 5))
    want = """\
radix tree: 3 nodes, 8 tokens, 3 evictable
default
`-- 5 tokens: text 2, picture #0 [0, 3)   hits 1, pins 1
    |-- 1 tokens: text 1
    `-- 2 tokens: text 2"""
    assert draw(tree) == want
    tree.verify([root, held])


def test_a_large_tree_is_cut():
    """A drawing has a bounded number of lines and says what it leaves out."""
    tree = RadixTree()
    root = tree.pin(tree.match("", np.array([0]), 0))
    for key in range(1000):
        tree.insert(root, np.array([key]), np.array([key]))
    lines = draw(tree).splitlines()
    assert len(lines) < 300
    assert "more" in lines[-1]
