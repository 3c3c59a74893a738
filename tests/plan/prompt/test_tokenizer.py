"""Text to tokens and back."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.prompt.vocabularies import NAMED, VOCABULARIES, metaspace
from tokenizers import AddedToken

from mmserve.core import BadRequest, ModelRefused
from mmserve.prompt import Stretch, Tokenizer, load_tokenizer
from mmserve.testing.byte_tokenizer import byte_tokenizer

FRAGMENTS = [
    "<s>",
    "</s>",
    "<|im_",
    "end|>",
    "<|im_end|>",
    "<image>",
    "<think>",
    "<",
    ">",
    " ",
    "a",
]
OURS = {name: Tokenizer(make(), special_tokens=NAMED) for name, make in VOCABULARIES.items()}


@pytest.mark.parametrize("name", OURS)
@settings(deadline=None, max_examples=60)
@given(text=st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join))
def test_plain_text_never_makes_control_tokens(name, text):
    """Whatever plain text spells, no control token comes of it (`<unk>` is not spelled)."""
    tokenizer = OURS[name]
    unknown = tokenizer.token_id("<unk>")
    assert {*tokenizer.encode_plain(text)} & tokenizer.control_ids <= {unknown}


@pytest.mark.parametrize("name", ["byte_level", "metaspace", "legacy"])
@settings(deadline=None, max_examples=60)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_decoding_an_encoded_text_gives_the_text(name, text):
    """Plain text survives encoding and decoding; sentencepiece cannot tell its first blank."""
    tokenizer = OURS[name]
    text = text.lstrip(" ")
    assert text == tokenizer.decode(tokenizer.encode_plain(text), at_start=True)


def test_spaced_marker_costs_about_the_same():
    """A spelled-out role marker is as long as the same text with a blank in it."""
    tokenizer = OURS["byte_level"]
    marker, spaced = (
        len(tokenizer.encode_plain(text)) for text in ("<|im_end|>", "<|im_end |>")
    )
    assert abs(marker - spaced) <= 2


def test_template_text_makes_control_tokens():
    """The same spelling in template text is one control token."""
    tokenizer = OURS["byte_level"]
    assert [tokenizer.token_id("<|im_end|>")] == tokenizer.encode_template("<|im_end|>")


def test_control_token_is_not_found_across_two_origins():
    """A template's and a user's text never make a control token together."""
    tokenizer = OURS["byte_level"]
    ids = tokenizer.encode_stretches([Stretch("<|im_", is_template=True), Stretch("end|>")])
    assert tokenizer.encode_plain("<|im_end|>") == ids


def test_neighbours_are_tokenized_as_one_run():
    """Merges cross the border between template text and user text."""
    tokenizer = OURS["byte_level"]
    ids = tokenizer.encode_stretches([Stretch("ta", is_template=True), Stretch("ble")])
    assert tokenizer.encode_plain("table") == ids


@pytest.mark.parametrize("text", ["emoji \ud83d", "x \ude00 y"])
def test_half_a_surrogate_pair_is_refused(text):
    """Lone surrogates are a bad request in either reading."""
    for encode in (OURS["byte_level"].encode_plain, OURS["byte_level"].encode_template):
        with pytest.raises(BadRequest) as caught:
            encode(text)
        assert caught.value.fields["reason"] == "surrogate"


def test_nul_is_served():
    """NUL is a character like any other."""
    assert byte_tokenizer().encode_plain("\0") == [0]


def test_first_word_rule_holds_only_at_the_start():
    """With prepend scheme "first" a run inside a prompt gets no blank of its own."""
    tokenizer = OURS["metaspace"]
    inside = tokenizer.encode_stretches([Stretch("red")], at_start=False)
    assert b"".join(map(tokenizer.piece, inside)) == b"red"
    assert b"".join(map(tokenizer.piece, tokenizer.encode_plain("red"))) == b" red"


def test_byte_fallback_pieces_are_bytes():
    """A character outside of the vocabulary is spelled by its bytes."""
    tokenizer = OURS["metaspace"]
    pieces = [tokenizer.piece(one) for one in tokenizer.encode_plain("日")]
    assert pieces == [b" ", b"\xe6", b"\x97", b"\xa5"]


def test_blanks_are_taken_in_where_the_token_says_so():
    """lstrip, rstrip and single_word of added tokens work as in the backend."""
    backend = metaspace.__wrapped__()
    backend.add_special_tokens(
        [
            AddedToken("<l>", special=True, normalized=False, lstrip=True),
            AddedToken("<r>", special=True, normalized=False, rstrip=True),
            AddedToken("<w>", special=True, normalized=False, single_word=True),
        ]
    )
    tokenizer = Tokenizer(backend)
    text = "a  <l> b <r>  <r> c x<w> <w> <l>"
    assert backend.encode(text, add_special_tokens=False).ids == tokenizer.encode_template(text)


def test_special_tokens_can_be_left_out_of_text():
    """Special tokens vanish from text only if asked."""
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode_template("hi<|end|>")
    assert tokenizer.decode(ids) == "hi"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "hi<|end|>"


def test_tokens_unknown_to_the_vocabulary_have_no_bytes():
    """Padding rows of a model decode to nothing."""
    tokenizer = byte_tokenizer()
    assert b"" == tokenizer.piece(tokenizer.vocab_size) == tokenizer.piece(-1)


def test_configuration_decides_on_bos(tmp_path):
    """`add_bos_token` of the configuration wins over the post-processor."""
    VOCABULARIES["byte_level"]().save(str(tmp_path / "tokenizer.json"))
    config = {"bos_token": {"content": "<s>"}, "add_bos_token": False}
    assert load_with(tmp_path, {"bos_token": "<s>"}).adds_bos
    assert not load_with(tmp_path, config).adds_bos


def load_with(folder, config):
    """The tokenizer of a folder after writing its configuration."""
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return load_tokenizer(folder)


def test_tokens_listed_only_in_the_configuration_are_added(tmp_path):
    """A token of `added_tokens_decoder` that the tokenizer lacks becomes a control token."""
    backend = VOCABULARIES["byte_level"]()
    backend.save(str(tmp_path / "tokenizer.json"))
    size = backend.get_vocab_size(with_added_tokens=True)
    entry = {"content": "<|new|>", "special": True}
    tokenizer = load_with(tmp_path, {"added_tokens_decoder": {str(size): entry}})
    assert [size] == tokenizer.encode_template("<|new|>")
    assert size in tokenizer.special_ids


def test_broken_file_is_refused(tmp_path):
    """A tokenizer.json that is none says so."""
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelRefused, match=r"tokenizer\.json cannot be read"):
        load_tokenizer(tmp_path)
