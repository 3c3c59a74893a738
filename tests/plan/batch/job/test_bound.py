"""The least tokens of a run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmserve.batch.job import LeastTokens, TokenTrie, told_apart
from mmserve.core import (
    FrameReport,
    ImagePart,
    PathSource,
    PromptReport,
    Request,
    TextPart,
    Turn,
    VideoPart,
)

PICTURE, CLIP = 9, 8
PLACEHOLDERS = frozenset({PICTURE, CLIP})
prompts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple), max_size=12)


def beginnings(prompts) -> set[tuple[int, ...]]:
    """Every beginning of every prompt: the nodes of their trie."""
    return {prompt[:end] for prompt in prompts for end in range(1, len(prompt) + 1)}


@given(prompts)
def test_a_trie_tells_how_much_of_a_prompt_it_had(prompts):
    """As many tokens as the longest beginning that one of the prompts before has."""
    trie, seen = TokenTrie(), set()
    for prompt in prompts:
        expected = max((n for n in range(len(prompt) + 1) if prompt[:n] in seen), default=0)
        assert trie.add(prompt) == expected
        seen |= beginnings([prompt])


@given(st.lists(st.tuples(st.integers(3, 5), prompts), max_size=4), st.randoms())
def test_the_least_is_the_size_of_the_trie(groups, chance):
    """In whatever order prompts come, each beginning counts once, a whole prompt 1."""
    every = [
        (bytes([medium]), (1, 2, medium, *prompt), 2)
        for medium, prompts in groups
        for prompt in prompts
    ]
    chance.shuffle(every)
    least, seen, expected = LeastTokens(), set(), 0
    for group_id, tokens, num_head in every:
        least.add(group_id, tokens, num_head)
        new = beginnings([tokens]) - seen
        expected += max(len(new), 1)
        seen |= new
    assert least.total_tokens == expected


def test_a_group_that_is_forgotten_still_shares_its_head():
    """What stands before the first picture is one for all groups."""
    least = LeastTokens()
    least.add(b"a", (1, 2, 3, 4), 2)
    least.forget(b"a")
    least.add(b"b", (1, 2, 5, 6), 2)
    assert least.total_tokens == 6


def asked(*media, tokens, clips=()) -> tuple[tuple[int, ...], int]:
    """A prompt of these media and tokens, told apart."""
    turns = (Turn("user", (*media, TextPart("q"))), Turn("assistant", (), is_open=True))
    return told_apart(
        Request(request_id="r", parts=turns), PromptReport(tokens, clips), PLACEHOLDERS
    )


def test_pictures_of_other_files_are_other_tokens():
    """Prompts are alike up to the first picture that differs."""
    a, b, c = (ImagePart(PathSource(name)) for name in "abc")
    tokens = (1, PICTURE, PICTURE, 2, PICTURE, PICTURE, 3)
    first, head = asked(a, b, tokens=tokens)
    second, _ = asked(a, c, tokens=tokens)
    assert head == 1
    assert first[:4] == second[:4]
    assert first[4] == first[5] != second[4]


@pytest.mark.parametrize("placeholder", sorted(PLACEHOLDERS))
def test_frames_are_known_by_their_times(placeholder):
    """Two samplings of one clip are alike up to the first frame that differs."""
    clip = VideoPart(PathSource("a.mp4"))
    tokens = (1, *[placeholder] * 4, 3)
    first, _ = asked(clip, tokens=tokens, clips=(FrameReport((0.0, 1.0)),))
    second, _ = asked(clip, tokens=tokens, clips=(FrameReport((0.0, 2.0)),))
    assert [one == other for one, other in zip(first, second, strict=True)] == [
        *[True] * 3,
        *[False] * 2,
        True,
    ]
