"""Placeholders in raw text."""

import pytest

from mmserve.core import BadRequest, ImagePart, PathSource, RawPart, VideoPart
from mmserve.prompt import IMAGE_SPELLINGS, split_placeholders
from mmserve.testing.byte_tokenizer import BYTE_IMAGE_TOKEN_ID, byte_prompt_builder

P, Q = ImagePart(PathSource("p")), ImagePart(PathSource("q"))
V = VideoPart(PathSource("v"))


@pytest.mark.parametrize("spelling", [*IMAGE_SPELLINGS, "<|own|>"])
def test_every_spelling_takes_an_item(spelling):
    """The clients' spellings and the model's own are places for pictures."""
    parts = split_placeholders(f"a{spelling}b", [*IMAGE_SPELLINGS, "<|own|>"], [P])
    assert (RawPart("a"), P, RawPart("b")) == parts


def test_kth_placeholder_takes_kth_item():
    """Items keep their order; clips have their own placeholders."""
    parts = split_placeholders("<image><video>x<image>", IMAGE_SPELLINGS, [P, Q], [V])
    assert (P, V, RawPart("x"), Q) == parts


@pytest.mark.parametrize("text", ["none", "<image><image>"])
def test_unequal_counts_are_refused(text):
    """One item needs exactly one placeholder."""
    with pytest.raises(BadRequest) as caught:
        split_placeholders(text, IMAGE_SPELLINGS, [P])
    assert caught.value.param == "image_data"


def test_without_media_placeholders_are_text():
    """Spellings of a kind that was not sent stay text."""
    assert (RawPart("<image>"),) == split_placeholders("<image>", IMAGE_SPELLINGS, [])
    assert (RawPart("<video>"), P) == split_placeholders("<video><image>", IMAGE_SPELLINGS, [P])


def test_bare_placeholder_in_raw_text_is_no_media_token():
    """The model's own placeholder in raw text without media is plain text."""
    prompt = byte_prompt_builder().build([RawPart("a<image><|end|>")])
    assert BYTE_IMAGE_TOKEN_ID not in prompt.token_ids.tolist()
