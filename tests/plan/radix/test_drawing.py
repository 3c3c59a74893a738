"""The tree can be looked at, in a terminal and in a browser."""

from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmserve.core.svg import Canvas, Paint, cut, fitted, printable
from mmserve.radix import RadixTree, draw
from mmserve.radix.excerpt import meaning, name_of
from mmserve.radix.icicle import draw_icicle

SVG = "{http://www.w3.org/2000/svg}"


def media(item: int, num_tokens: int, first: int = 0) -> list[int]:
    """Keys of tokens of a picture."""
    return [-(1 + (item << 20) + offset) for offset in range(first, first + num_tokens)]


def planted(*prompts, namespace="") -> tuple[RadixTree, list]:
    """A tree that holds these keys, and the pins that keep it."""
    tree = RadixTree(history_tokens=1000)
    root = tree.pin(tree.match(namespace, np.array([0]), 0))
    num_slots = 0
    for prompt in prompts:
        slots = np.arange(num_slots, num_slots + len(prompt))
        tree.insert(root, np.array(prompt), slots)
        num_slots += len(prompt)
    return tree, [root]


def test_a_tree_with_a_picture():
    """Nodes are drawn with tokens, pictures, hits and pins."""
    picture = media(0, 3)
    tree, _ = planted([5, 6, *picture, 9], [5, 6, *picture, 7, 8])
    tree.pin(tree.match("", np.array([5, 6, *picture, 9]), 5))
    want = """\
radix tree: 3 nodes, 1 hits, 0 tokens evicted so far
8 tokens = 5 pinned + 3 evictable
tokens    hits  pins  wait
                            default
     5       1     1        `- text 2, picture #0 [0, 3)
     1                         |- text 1
     2                         `- text 2"""
    assert draw(tree) == want


def test_ghosts_are_marked():
    """What was evicted, and what a waiting prompt wishes for, is drawn in parentheses."""
    tree, _ = planted([5, 6, 9], [5, 6, 7, 8])
    tree.evict(1)
    tree.hang("", np.array([5, 6, 1, 2, 3]), "alice")
    lines = draw(tree).splitlines()
    assert lines[0].endswith("1 tokens evicted so far")
    assert lines[2] == "1 evicted tokens remembered; 1 wait for 3 tokens not cached"
    assert lines[4].split() == ["1", "default"]
    assert any(line.startswith("    (1)") and "evicted: text 1" in line for line in lines)
    (wished,) = [line for line in lines if "wished: text 3" in line]
    assert wished.split()[:2] == ["(3)", "1"]
    found = titles(draw_icicle(tree))
    assert "1 tokens evicted: text 1" in found
    assert "3 tokens wished: text 3; 1 waiting" in found


def test_a_large_tree_is_cut():
    """A drawing has a bounded number of lines and says what it leaves out."""
    tree, _ = planted(*([key, key] for key in range(1000)))
    lines = draw(tree).splitlines()
    assert len(lines) < 30
    assert lines[-1].endswith("`- ... 988 more")
    assert len(draw_icicle(tree)) < 20_000


def test_the_most_used_branches_are_shown():
    """Of many branches those in use are drawn first, in the order of the tree."""
    tree, _ = planted(*([key, key] for key in range(100)))
    for key in (70, 30):
        tree.pin(tree.match("", np.array([key, key, 1]), 2))
    lines = [line for line in draw(tree).splitlines() if line.split()[:1] == ["2"]]
    assert [line.split()[1:3] for line in lines if "text" in line].count(["1", "1"]) == 2


def test_salts_are_not_told():
    """A namespace is drawn as the digest that also names its client."""
    tree, _ = planted([1, 2], namespace="sesame")
    for drawing in (draw(tree), draw_icicle(tree)):
        assert "sesame" not in drawing
        assert name_of("sesame") in drawing
    assert name_of("") == "default"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ([1, 2, 3], "text 3"),
        (media(4, 6), "picture #4 [0, 6)"),
        ([1, *media(4, 6, 2), 3], "text 1, picture #4 [2, 8), text 1"),
        ([*media(1, 2), *media(2, 2), *media(3, 2)], "pictures #1..#3 [0, 2) each"),
        ([*media(1, 2), 7, *media(2, 2), 8, 9], "pictures #1..#2 [0, 2) + text 1 each, text 2"),
        ([*media(1, 2), *media(3, 2)], "picture #1 [0, 2), picture #3 [0, 2)"),
        ([*media(1, 2), *media(2, 3)], "picture #1 [0, 2), picture #2 [0, 3)"),
        (media(1, 2) * 2, "picture #1 [0, 2), picture #1 [0, 2)"),
    ],
)
def test_what_tokens_stand_for(keys, words):
    """Text is counted, pictures are named; those alike and in a row are folded."""
    assert meaning(np.array(keys)) == words


def titles(svg: str) -> list[str]:
    """Words that appear over a shape."""
    root = ElementTree.fromstring(svg)
    return [one.text for shape in root for one in shape if one.tag == SVG + "title"]


prompts = st.lists(
    st.lists(st.sampled_from([1, 2, 3, *media(0, 3), *media(1, 3)]), min_size=1, max_size=40),
    min_size=1,
    max_size=30,
)


@settings(deadline=None, max_examples=60)
@given(prompts, prompts, st.text(max_size=20), st.integers(0, 60))
def test_any_tree_can_be_drawn(cached, waiting, client, num_evicted):
    """Any tree gives at most 80 columns, and valid XML in which no two boxes overlap."""
    tree, _ = planted(*cached)
    tree.evict(num_evicted)
    for keys in waiting:
        tree.hang("", np.array(keys), client)
    lines = draw(tree).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) < 250
    root = ElementTree.fromstring(draw_icicle(tree))
    boxes = [
        tuple(float(b.get(n)) for n in ("x", "y", "width", "height"))
        for b in root.iter(SVG + "rect")
        if b.get("x")
    ]
    assert max(x + width for x, _, width, _ in boxes) <= 1200
    for place, (x, y, width, height) in enumerate(boxes):
        for left, top, other_width, other_height in boxes[:place]:
            is_beside = left + other_width <= x + 0.2 or x + width <= left + 0.2
            assert is_beside or top + other_height <= y + 0.2 or y + height <= top + 0.2


@given(st.text())
def test_words_cannot_break_a_drawing(words):
    """Any text is escaped, and what cannot be printed is replaced."""
    canvas = Canvas(words)
    canvas.words(1, 2, words)
    canvas.box(0, 0, 1, 1, Paint("#ffffff", "#000000"), words)
    root = ElementTree.fromstring(canvas.finish(10))
    assert root.find(SVG + "text").text == (printable(words) or None)
    assert root.get("aria-label") == printable(words)


def test_words_are_cut_to_fit():
    """Short words stay, long ones end in two dots, and where nothing fits nothing is left."""
    assert cut("abcdefgh", 8) == "abcdefgh"
    assert cut("abcdefgh", 6) == "abcd.."
    assert cut("abcdefgh", 4) == ""
    assert cut("a\x1b[31m\u202e", 9) == "a?[31m?"
    assert fitted("abc", 3 * 12) == "abc"
    assert fitted("abc", 3 * 6) == ""
