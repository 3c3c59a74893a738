"""The tree as plain values, for programs that draw it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mmserve.core import MediaSpan, Prompt
from mmserve.radix import Interner, Node, RadixTree, outline, prefix_keys

Name = Callable[[int], tuple[str, str] | None]


def media(item: int, num_tokens: int, first: int = 0) -> list[int]:
    """Keys of tokens of a picture."""
    return [-(1 + (item << 20) + offset) for offset in range(first, first + num_tokens)]


def planted(*prompts: Sequence[int], namespace: str = "") -> tuple[RadixTree, Node]:
    """A tree that holds these keys, and the pin that keeps its root."""
    tree = RadixTree(history_tokens=1000)
    root = tree.pin(tree.match(namespace, np.array([0]), 0))
    num_slots = 0
    for prompt in prompts:
        tree.insert(root, np.array(prompt), np.arange(num_slots, num_slots + len(prompt)))
        num_slots += len(prompt)
    return tree, root


def told(tree: RadixTree, name: Name = {}.get) -> dict[str, Any]:
    """The outline, after a way through JSON."""
    return json.loads(json.dumps(outline(tree, name)))


def test_nodes_name_their_parents_and_pieces() -> None:
    """A node's pieces are its tokens in order; the root has none."""
    picture = media(3, 4)
    tree, _ = planted([5, 6, *picture, 9], [5, 6, *picture, 7, 8])
    root, shared, *leaves = told(tree, {3: ("ab" * 16, "image")}.get)["nodes"]
    assert (root["namespace"], root["state"], root["parent"]) == ("default", "root", None)
    assert (root["pieces"], root["num_tokens"]) == ([], 0)
    text, span = shared["pieces"]
    assert text == {"kind": "text", "num_tokens": 2}
    assert span["kind"] == "picture"
    assert (span["identity"], span["start"], span["end"]) == ("ab" * 16, 0, 4)
    assert [(leaf["parent"], leaf["num_tokens"]) for leaf in leaves] == [(1, 1), (1, 2)]


def test_frames_are_told_from_pictures() -> None:
    """By what the interner was last asked for; a forgotten item has no identity."""
    interner = Interner(capacity=2)
    spans = tuple(
        MediaSpan(bytes([number]) * 16, 3 * number, 3, kind)
        for number, kind in enumerate(("image", "video", "video"))
    )
    keys = prefix_keys(Prompt(np.zeros(9, np.int64), spans), interner)
    tree, _ = planted(keys.tolist())
    pieces = told(tree, interner.name)["nodes"][1]["pieces"]
    assert [(piece["kind"], piece["identity"]) for piece in pieces] == [
        ("picture", None),
        ("frame", "01" * 16),
        ("frame", "02" * 16),
    ]


def test_no_token_and_no_salt_is_told() -> None:
    """Ids of text tokens do not stand in it, nor does the name of a namespace."""
    tree, _ = planted([424_243, 424_244, 424_245], namespace="a secret salt")
    words = json.dumps(outline(tree, {}.get))
    assert "424" not in words
    assert "secret" not in words
    assert json.loads(words)["nodes"][0]["namespace"].startswith("salt:")


def test_hits_pins_and_age() -> None:
    """A pinned node is in use; what was used before others is older."""
    tree, _ = planted([1, 2, 3], [7, 8, 9])
    match = tree.match("", np.array([1, 2, 3, 4]), 4)
    tree.unpin(tree.pin(match))
    pin = tree.pin(tree.match("", np.array([1, 2, 3, 4]), 4))
    used, idle = told(tree)["nodes"][1:]
    assert (used["state"], used["pins"], used["hits"]) == ("pinned", 1, 2)
    assert (idle["state"], idle["pins"], idle["hits"]) == ("cached", 0, 0)
    tree.unpin(pin)
    used, idle = told(tree)["nodes"][1:]
    assert used["age"] < idle["age"]


def test_a_large_tree_is_cut() -> None:
    """At most 160 nodes and 1,200 pieces are told, the rest is counted."""
    wide = [
        [n, *(key for k in range(60) for key in (*media(60 * n + k, 1), 5))] for n in range(400)
    ]
    tree, _ = planted(*wide)
    found = told(tree)
    assert len(found["nodes"]) <= 160
    assert found["num_nodes"] == 400
    assert found["nodes"][0]["num_hidden"] == 400 - (len(found["nodes"]) - 1)
    pieces = [len(node["pieces"]) for node in found["nodes"]]
    assert sum(pieces) <= 1200
    for node in found["nodes"][1:]:
        assert len(node["pieces"]) + node["num_hidden_pieces"] == 121


def test_what_is_there_goes_before_what_was() -> None:
    """Of a tree that is cut, nodes with KV are told before evicted ones of many hits."""
    tree, root = planted(*([n, n + 1000] for n in range(400)))
    for n in range(400):
        tree.unpin(tree.pin(tree.match("", np.array([n, n + 1000, 1]), 3)))
    tree.evict(800)
    tree.insert(root, np.array([5000, 5001]), np.array([0, 1]))
    states = [node["state"] for node in told(tree)["nodes"][1:]]
    assert "evicted" in states
    assert states.count("cached") == 1
