"""Prefix keys are exact."""

import numpy as np
import pytest

from mmserve.core import BadRequest, GridPlace, MediaSpan, Prompt
from mmserve.radix import Interner, prefix_keys
from mmserve.radix.interner import media_parts

A, B = b"a" * 16, b"b" * 16


def make_prompt(*digests, num_tokens=3):
    """One text token, then a span for each digest."""
    spans, start = [], 1
    for digest in digests:
        spans.append(MediaSpan(digest, start, num_tokens))
        start += num_tokens
    return Prompt(np.arange(start, dtype=np.int64), tuple(spans))


def test_text_keys_are_the_token_ids():
    """Without media the keys are the token ids, in a new array."""
    prompt = make_prompt()
    keys = prefix_keys(prompt, Interner())
    assert keys.tolist() == prompt.token_ids.tolist()
    assert keys is not prompt.token_ids


def test_media_keys_are_outside_the_vocabulary_and_differ_by_offset():
    """Every token of a span has a key of its own, below 0."""
    keys = prefix_keys(make_prompt(A, B), Interner())
    assert keys[1:4].tolist() == [-1, -2, -3]
    assert len(set(keys[1:].tolist())) == 6
    assert (keys[1:] < 0).all()


def test_digests_that_differ_in_the_last_byte_have_different_keys():
    """The whole digest counts."""
    interner = Interner()
    first = prefix_keys(make_prompt(A), interner)
    second = prefix_keys(make_prompt(A[:15] + b"x"), interner)
    assert not set(first[1:].tolist()) & set(second[1:].tolist())


def test_the_same_digest_has_the_same_keys_wherever_it_stands():
    """Keys depend on the digest and the offset, not on the place in the prompt."""
    interner = Interner()
    keys = prefix_keys(make_prompt(B, A), interner)
    assert prefix_keys(make_prompt(A), interner)[1:].tolist() == keys[4:].tolist()


def test_two_clips_in_a_row_are_not_one_longer_clip():
    """A group of frames that begins a clip has other keys than one that goes on in it."""
    interner, ids = Interner(), np.arange(5, dtype=np.int64)

    def keys(second_is_first):
        grids = (GridPlace(1, 2), GridPlace(1, 2, time=1, is_first=second_is_first))
        spans = (
            MediaSpan(A, 1, 2, "video", grid=grids[0]),
            MediaSpan(B, 3, 2, "video", grid=grids[1]),
        )
        return prefix_keys(Prompt(ids, spans), interner).tolist()

    assert keys(True)[:3] == keys(False)[:3]
    assert not set(keys(True)[3:]) & set(keys(False)[3:])


def test_numbers_are_never_used_again():
    """A digest forgotten by the table gets a new number, and so does every other."""
    interner = Interner(capacity=2)
    items = [interner.item(bytes([i]) * 16) for i in range(5)]
    assert len(interner) == 2
    items.append(interner.item(bytes([0]) * 16))
    assert len(set(items)) == 6
    assert interner.item(bytes([4]) * 16) == items[4]


def test_a_span_too_long_for_its_offsets_is_refused():
    """Offsets never run into the next item's keys."""
    prompt = make_prompt(A, num_tokens=2**20 + 1)
    with pytest.raises(BadRequest) as caught:
        prefix_keys(prompt, Interner())
    assert caught.value.fields["reason"] == "too_large"


def test_parts_of_keys_are_recovered():
    """Items and offsets can be read back from keys."""
    interner = Interner()
    interner.item(B)
    items, offsets = media_parts(prefix_keys(make_prompt(A), interner))
    assert items.tolist() == [-1, 1, 1, 1]
    assert offsets.tolist() == [-1, 0, 1, 2]
