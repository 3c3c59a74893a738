"""Forced text: appended in one step, re-tokenised, with the same answer however it is run."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.sched.driver import EOS, VOCAB, Driver, ListMatcher, prompt

from mmserve.core import Broken, Jump

LETTERS = 8


class DoubleMatcher:
    """Texts of letters in which "?" is free; two equal letters may be one token.

    Token 1 + x is letter x, token 20 + x is letter x twice. Canonical is a double wherever one
    fits, from the left: a letter at the end of what is known may become half of a double.
    """

    def __init__(self, pattern, token_ids=()):
        self.pattern = pattern
        self.token_ids = list(token_ids)

    @property
    def text(self):
        """Letters so far."""
        return "".join(map(spell, self.token_ids))

    def allowed(self):
        """The mask of tokens that fit."""
        mask = np.zeros(VOCAB // 32, dtype=np.uint32)
        at = len(self.text)
        for token_id in [*range(1, 1 + LETTERS), *range(20, 20 + LETTERS)]:
            piece = spell(token_id)
            want = self.pattern[at : at + len(piece)]
            if len(want) == len(piece) and all(
                w in ("?", p) for w, p in zip(want, piece, strict=True)
            ):
                mask[token_id // 32] |= np.uint32(1 << token_id % 32)
        if at == len(self.pattern):
            mask[EOS // 32] |= np.uint32(1 << EOS % 32)
        return mask

    def accept(self, token_id):
        """One token on."""
        if not int(self.allowed()[token_id // 32]) >> token_id % 32 & 1:
            raise Broken(f"token {token_id} does not fit")
        self.token_ids.append(token_id)

    def rollback(self, num_tokens):
        """Some tokens back."""
        del self.token_ids[len(self.token_ids) - num_tokens :]

    def jump(self, num_settled=0, most=None):
        """Forced letters in canonical tokens; a single letter at the end waits."""
        text = self.text
        rest = self.pattern[len(text) :]
        forced = "".join(itertools.takewhile(lambda letter: letter != "?", rest))
        is_end = len(forced) == len(rest)
        new = canonical(text + forced)
        if not is_end and new and new[-1] < 20:
            new = new[:-1]
        kept = 0
        while kept < min(len(new), len(self.token_ids)) and new[kept] == self.token_ids[kept]:
            kept += 1
        added = new[kept:][:most]
        is_end = is_end and len(added) == len(new) - kept
        old = self.token_ids[kept:]
        is_longer = sum(map(width, added)) > sum(map(width, old))
        if not forced or kept < num_settled or not is_longer:
            return None
        return Jump(len(old), (*added,), is_end)

    @property
    def is_finished(self):
        """Whether all letters are there."""
        return len(self.text) == len(self.pattern)


def spell(token_id):
    """The letters of a token."""
    letter = "abcdefgh"[(token_id - 1) if token_id < 20 else token_id - 20]
    return letter * width(token_id)


def width(token_id):
    """How many letters a token has."""
    return 1 if token_id < 20 else 2


def canonical(text):
    """Tokens of a text, doubles first from the left."""
    pieces = re.findall(r"([a-h])(\1)?", text)
    return [
        ("abcdefgh".index(letter) + 20) if double else ("abcdefgh".index(letter) + 1)
        for letter, double in pieces
    ]


def test_forced_tokens_take_one_step():
    """Three forced tokens and two drawn ones take two steps, not five."""
    driver = Driver()
    matcher = ListMatcher([40], [41], [42], [43, 44], [45, 46])
    driver.add(prompt([1, 2, 3]), matcher=matcher, max_new_tokens=9)
    driver.run()
    assert [len(row.token_ids) for plan in driver.plans for row in plan.rows] == [6, 1]
    answer = driver.answers[0]
    assert answer.tokens[:3] == [40, 41, 42]
    assert answer.last.usage.completion_tokens == 5
    assert answer.last.usage.forced_tokens == 3


def test_without_jumps_forced_tokens_take_a_step_each():
    """With `jump_forward` off the same answer takes a step for each token."""
    driver = Driver(jump_forward=False)
    matcher = ListMatcher([40], [41], [42], [43], [45])
    driver.add(prompt([1, 2, 3]), matcher=matcher, max_new_tokens=9)
    driver.run()
    assert driver.answers[0].tokens == [40, 41, 42, 43, 45]
    assert len(driver.plans) == 5
    assert [len(row.token_ids) for plan in driver.plans for row in plan.rows] == [3, 1, 1, 1, 1]


def test_a_jump_to_the_end_takes_no_step():
    """Where all that is left is certain, the answer ends with the drawn token's step."""
    driver = Driver()
    driver.add(prompt([1]), matcher=ListMatcher([40, 41], [42], [43]), max_new_tokens=9)
    driver.run()
    assert len(driver.plans) == 1
    assert driver.answers[0].tokens[1:] == [42, 43]
    assert driver.answers[0].finish.reason == "stop"


@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_max_tokens_cuts_a_jump(most):
    """An answer never has more tokens than were asked for, forced or not."""
    driver = Driver()
    matcher = ListMatcher([40], [41], [42, 43], [44], [45, 46])
    driver.add(prompt([1]), matcher=matcher, max_new_tokens=most)
    driver.run()
    assert len(driver.answers[0].tokens) == most
    assert driver.answers[0].finish.reason == "length"


def test_a_stop_token_is_not_jumped_over():
    """A forced token that is named as a stop ends the answer."""
    driver = Driver()
    matcher = ListMatcher([40, 41], [42], [43], [44], [45, 46])
    driver.add(prompt([1]), matcher=matcher, max_new_tokens=9, stop_token_ids=(43,))
    driver.run()
    assert driver.answers[0].tokens[1:] == [42, 43]
    assert driver.answers[0].finish.matched == 43


def test_the_first_jump_is_shared():
    """Answers that begin with the same forced text compute it once, with the prompt."""
    driver = Driver()
    for _ in range(3):
        driver.add(
            prompt([1, 2, 3, 4]), matcher=ListMatcher([40], [41], [42], [43, 44], [45, 46])
        )
    driver.run()
    assert sum(len(row.token_ids) for row in driver.plans[0].rows) == 7 + 1 + 1


PATTERNS = st.lists(
    st.one_of(st.text("abc", min_size=1, max_size=6), st.just("?"), st.just("??")),
    min_size=1,
    max_size=8,
).map("".join)


@settings(max_examples=120)
@given(
    patterns=st.lists(PATTERNS, min_size=1, max_size=4),
    page_tokens=st.sampled_from([1, 1, 2, 4]),
    chunk_tokens=st.sampled_from([3, 8, 1024]),
    num_slots=st.sampled_from([48, 64, 512]),
    radix_cache=st.booleans(),
    scored=st.booleans(),
    jump_forward=st.booleans(),
    temperature=st.sampled_from([0.0, 1.0]),
)
def test_the_same_answer_however_it_is_run(
    patterns,
    page_tokens,
    chunk_tokens,
    num_slots,
    radix_cache,
    scored,
    jump_forward,
    temperature,
):
    """Pages, chunks, cache, neighbours, retraction, steps for jumps change no token or score.

    Nor does asking for scores change tokens.
    """
    prompts = [prompt([1 + number % 2, 2, 3, 4, 5]) for number in range(len(patterns))]
    params = {
        "max_new_tokens": None,
        "return_logprobs": scored,
        "temperature": temperature,
        "prompt_logprobs_from": 2 if scored else None,
    }
    plain = {"return_logprobs": False, "prompt_logprobs_from": None}
    driver = Driver(
        num_slots=num_slots,
        context=48,
        page_tokens=page_tokens,
        chunk_tokens=chunk_tokens,
        radix_cache=radix_cache,
        jump_forward=jump_forward,
    )
    for number, pattern in enumerate(patterns):
        driver.add(prompts[number], matcher=DoubleMatcher(pattern), seed=number, **params)
    driver.run()
    for number, pattern in enumerate(patterns):
        lonely = Driver(num_slots=1024, context=48, radix_cache=False)
        lonely.add(prompts[number], matcher=DoubleMatcher(pattern), seed=number, **params)
        lonely.run()
        mine, other = driver.answers[number], lonely.answers[0]
        assert mine.tokens == other.tokens
        assert mine.finish == other.finish
        assert sorted(mine.scores) == sorted(other.scores)
        if scored:
            assert mine.logprobs == other.logprobs
            assert None not in mine.logprobs
            lonely.add(
                prompts[number], matcher=DoubleMatcher(pattern), seed=number, **(params | plain)
            )
            lonely.run()
            assert lonely.answers[1].tokens == mine.tokens
        text = "".join(map(spell, mine.tokens))
        assert re.fullmatch(pattern.replace("?", "."), text)
        settled = mine.tokens[: mine.num_settled]
        assert settled == canonical("".join(map(spell, settled)))
