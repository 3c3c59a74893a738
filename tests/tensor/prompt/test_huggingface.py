"""Rendered tokens are those of Hugging Face on harmless content."""

import json

import pytest
from plan.prompt.vocabularies import NAMED, TEMPLATES, VOCABULARIES
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from mmserve.core import ImagePart, MediaLayout, MediaStyle, PathSource, TextPart, Turn
from mmserve.prompt import ChatTemplate, PromptBuilder, Tokenizer, load_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

HARMLESS = (
    "How many red cubes are on the table?",
    "  leading and trailing blanks \n",
    "a\n\nb",
    "日本語 and \U0001f469‍\U0001f466 and é\u0301",
    "tag < image > and [x] {y} |z| 50% <b>bold</b>",
    "",
)


def reference(name):
    """Hugging Face's tokenizer."""
    return PreTrainedTokenizerFast(
        tokenizer_object=VOCABULARIES[name](),
        clean_up_tokenization_spaces=False,
        **{key: value for key, value in NAMED.items() if key != "image_token"},
    )


def ours(name):
    """Our tokenizer over the same backend."""
    return Tokenizer(VOCABULARIES[name](), special_tokens=NAMED)


@pytest.mark.parametrize("name", VOCABULARIES)
@pytest.mark.parametrize(
    "text", [*HARMLESS, "<s>a b", "a<image>b <image> c</s>", "<|im_end|>\n<|im_start|>user\nx"]
)
def test_template_text_is_tokenized_as_a_whole_string(name, text):
    """Template text gives the ids that Hugging Face gives for the whole string."""
    expected = reference(name).encode(text, add_special_tokens=False)
    assert expected == ours(name).encode_template(text)


@pytest.mark.parametrize("name", VOCABULARIES)
@pytest.mark.parametrize("style", ["chatml", "inst", "thinker"])
@pytest.mark.parametrize("text", HARMLESS)
def test_chat_equals_apply_chat_template(name, style, text):
    """A conversation of three turns gives the ids of apply_chat_template."""
    contents = [("system", "Be brief."), ("user", text), ("assistant", "yes"), ("user", text)]
    messages = [{"role": role, "content": content} for role, content in contents]
    expected = reference(name).apply_chat_template(
        messages,
        chat_template=TEMPLATES[style],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
    )
    tokenizer = ours(name)
    builder = PromptBuilder(tokenizer, ChatTemplate(TEMPLATES[style], tokenizer.special_tokens))
    turns = [Turn(role, (TextPart(content),)) for role, content in contents]
    prompt = builder.build([*turns, Turn("assistant", (), is_open=True)])
    assert expected == prompt.token_ids.tolist()


class OnePicture:
    """A picture of one token."""

    digest, layout, kind, timestamp_s = b"p" * 16, MediaLayout((1,)), "image", None


@pytest.mark.parametrize("name", ["byte_level", "metaspace", "legacy"])
def test_picture_first_equals_apply_chat_template(name):
    """A picture before its question stands where a LLaVA-like template puts it."""
    content = [{"type": "image"}, {"type": "text", "text": "How many red cubes?"}]
    expected = reference(name).apply_chat_template(
        [{"role": "user", "content": content}],
        chat_template=TEMPLATES["llava"],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
    )
    tokenizer = ours(name)
    builder = PromptBuilder(
        tokenizer,
        ChatTemplate(TEMPLATES["llava"], tokenizer.special_tokens),
        media=MediaStyle(image_token_id=tokenizer.token_id("<image>")),
    )
    parts = (ImagePart(PathSource("a.png")), TextPart("How many red cubes?"))
    prompt = builder.build(
        [Turn("user", parts), Turn("assistant", (), is_open=True)], [[OnePicture()]]
    )
    bos = [tokenizer.bos_token_id] if tokenizer.adds_bos else []
    assert bos + expected == prompt.token_ids.tolist()


@pytest.mark.parametrize("name", VOCABULARIES)
def test_saved_directory_loads_as_auto_tokenizer_does(name, tmp_path):
    """A saved directory gives the same ids, special ids and BOS as AutoTokenizer."""
    reference(name).save_pretrained(tmp_path)
    auto = AutoTokenizer.from_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    text = "<s>Is <image> red?</s>"
    assert auto.encode(text, add_special_tokens=False) == loaded.encode_template(text)
    assert set(auto.all_special_ids) <= loaded.special_ids
    assert auto.bos_token_id == loaded.bos_token_id


def test_directory_without_tokenizer_json_goes_through_transformers(tmp_path):
    """A slow vocabulary (GPT-2's two files) is converted by transformers."""
    model = json.loads(VOCABULARIES["byte_level"]().to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in model["merges"])]
    (tmp_path / "merges.txt").write_text("\n".join(lines))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "GPT2Tokenizer", "bos_token": "<s>", "eos_token": "</s>"}'
    )
    loaded = load_tokenizer(tmp_path)
    expected = ours("byte_level").encode_plain("red cubes are on the table")
    assert expected == loaded.encode_plain("red cubes are on the table")
