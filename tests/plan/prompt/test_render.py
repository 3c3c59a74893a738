"""Parts to prompts."""

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.prompt.media import Item
from plan.prompt.vocabularies import NAMED, TEMPLATES, VOCABULARIES, WRAPPED

from mmserve.core import (
    BadRequest,
    ImagePart,
    MediaRefused,
    MediaStyle,
    PathSource,
    RawPart,
    TextPart,
    TokensPart,
    Turn,
    VideoPart,
)
from mmserve.prompt import ChatTemplate, PictureStyle, PromptBuilder, Tokenizer
from mmserve.testing.byte_tokenizer import byte_prompt_builder, byte_tokenizer

BYTES = byte_tokenizer()
MERGES = Tokenizer(VOCABULARIES["byte_level"](), special_tokens=NAMED)
P = ImagePart(PathSource("p.png"))
V = VideoPart(PathSource("v.mp4"))
ANSWER = Turn("assistant", (), is_open=True)


@functools.cache
def template_of(style, tokenizer):
    """A compiled template."""
    return ChatTemplate(TEMPLATES[style], tokenizer.special_tokens)


def builder(style=None, tokenizer=MERGES, **kwargs):
    """A builder for one of the template styles."""
    template = template_of(style, tokenizer) if style else None
    kwargs.setdefault("media", MediaStyle(image_token_id=tokenizer.token_id("<image>")))
    return PromptBuilder(tokenizer, template, **kwargs)


def text_of(prompt, tokenizer=MERGES):
    """The prompt with every media token written as its placeholder."""
    return tokenizer.decode(prompt.token_ids.tolist(), skip_special_tokens=False)


def user(*parts):
    """A user's turn; strings are text."""
    return Turn("user", tuple(TextPart(p) if isinstance(p, str) else p for p in parts))


def media(*names):
    """One picture a name."""
    return [[Item(name)] for name in names]


# Text


def test_parts_equal_the_joined_string():
    """Several text parts are the string that joins them, in every role."""
    for role in ("system", "user", "assistant"):
        whole = Turn(role, (TextPart("alpha beta"),))
        split = Turn(role, (TextPart("alpha "), TextPart("beta")))
        build = builder("chatml").build
        assert text_of(build([whole, ANSWER])) == text_of(build([split, ANSWER]))


@pytest.mark.parametrize("style", ["chatml", "inst", "llava"])
def test_template_that_takes_only_one_form_gets_it(style):
    """No template loses text, whether it wants strings or lists."""
    assert "alpha beta" in text_of(builder(style).build([user("alpha ", "beta"), ANSWER]))


def test_trims_act_on_the_real_text():
    """A template's strip removes the blanks that the user wrote."""
    prompt = builder("inst").build([user("  hi  "), ANSWER])
    assert text_of(prompt) == "<s>[INST] hi [/INST]"


def test_default_system_text_is_the_templates():
    """A conversation without system turn gets the template's own."""
    prompt = builder("chatml").build([user("hi")])
    assert "<|im_start|>system\nYou are a helpful assistant.<|im_end|>" in text_of(prompt)


FRAGMENTS = [
    "<|im_end|>",
    "<|im_",
    "start|>",
    "<image>",
    "<s>",
    "</s>",
    "</think>",
    "<",
    ">",
    "\n",
    "a",
]
TEXT = st.lists(st.sampled_from(FRAGMENTS), max_size=6).map("".join)


@pytest.mark.parametrize("style", ["chatml", "inst", "llava"])
@settings(deadline=None, max_examples=30)
@given(system=TEXT, question=TEXT, reply=TEXT, more=TEXT)
def test_users_never_write_control_tokens(style, system, question, reply, more):
    """Control tokens are those of the harmless conversation, whatever the texts spell."""
    hostile, harmless = (
        builder(style).build(
            [
                Turn("system", (TextPart(texts[0]),)),
                user(texts[1], P, texts[2]),
                Turn("assistant", (TextPart(texts[3]),)),
                user(texts[0], texts[1]),
                ANSWER,
            ],
            media("p"),
        )
        for texts in ((system, question, more, reply), ("x", "x", "x", "x"))
    )
    assert controls(harmless) == controls(hostile)
    assert len(hostile.spans) == 1


def controls(prompt):
    """The control tokens of a prompt, in order."""
    return [one for one in prompt.token_ids.tolist() if one in MERGES.control_ids]


@settings(deadline=None, max_examples=30)
@given(text=TEXT)
def test_text_of_users_arrives_complete(text):
    """Marks leave no trace: the text between the template's tokens is the user's."""
    prompt = builder("chatml").build([Turn("system", ()), user(text)])
    expected = f"<s><|im_start|>system\n<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n"
    assert expected == text_of(prompt)


def test_raw_text_in_a_turn_may_write_control_tokens():
    """raw() opts in to control tokens, but never to media."""
    turn = Turn("user", (RawPart("a<|im_end|><image>"),))
    ids = builder("chatml").build([turn]).token_ids.tolist()
    assert MERGES.token_id("<image>") not in ids
    assert ids.count(MERGES.token_id("<|im_end|>")) == 3


def test_template_rewrites_earlier_turns():
    """A template that drops earlier thinking does so with plain text, too."""
    turns = [
        user("q"),
        Turn("assistant", (TextPart("<think>\nhm\n</think>\n\nyes"),)),
        user("r"),
    ]
    prompt = builder("thinker").build(turns)
    assert "<|im_start|>assistant\nyes<|im_end|>" in text_of(prompt)


@pytest.mark.parametrize("half", ["\ud83d", "\ude00"])
def test_half_a_surrogate_pair_is_refused(half):
    """Lone surrogates are refused inside and outside of turns."""
    for parts in ([user(half)], [TextPart(half)], [RawPart(half)]):
        with pytest.raises(BadRequest, match="surrogate"):
            builder("chatml").build(parts)


def test_empty_content_is_an_empty_turn():
    """A turn without parts is served; a request without parts is refused."""
    assert text_of(builder("chatml").build([user()])).endswith("user\n<|im_end|>\n")
    with pytest.raises(BadRequest, match="no messages"):
        builder("chatml").build([])


@pytest.mark.parametrize("role", ["end", "image", "user<|im_end|>", ""])
def test_unknown_roles_are_refused(role):
    """A role's name cannot forge a control token."""
    with pytest.raises(BadRequest, match="role"):
        builder("chatml").build([Turn(role, (TextPart("x"),))])


def test_refusal_of_the_template_is_a_bad_request():
    """A template's own exception reaches the caller in its words."""
    with pytest.raises(BadRequest, match="roles must alternate"):
        builder("inst").build([user("a"), user("b")])


def test_own_template_of_a_request():
    """A request may bring a template; a broken one is refused."""
    build = builder("chatml").build
    template = "{% for m in messages %}{{ m.content }}!{% endfor %}"
    assert text_of(build([user("hi")], chat_template=template, add_bos="never")) == "hi!"
    with pytest.raises(BadRequest, match="not valid"):
        build([user("hi")], chat_template="{% for %}")


def test_template_cannot_reach_out_of_its_sandbox():
    """Python's internals are closed to templates."""
    template = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    with pytest.raises(BadRequest, match="refuses"):
        builder("chatml").build([user("hi")], chat_template=template)


def test_model_without_template_refuses_turns():
    """No template is ever guessed."""
    with pytest.raises(BadRequest, match="no chat template"):
        builder().build([user("hi")])


# Beginnings and ends


def test_exactly_one_bos():
    """Template, tokenizer and raw text never put two."""
    bos = MERGES.bos_token_id
    for style, parts in (
        ("inst", [user("hi")]),
        ("chatml", [user("hi")]),
        (None, [TextPart("hi")]),
        (None, [RawPart("<s>hi")]),
        ("inst", [RawPart("<s>"), user("hi")]),
        ("inst", [TextPart("hi"), user("hi")]),
    ):
        assert [
            place
            for place, one in enumerate(builder(style).build(parts).token_ids.tolist())
            if one == bos
        ] == [0], (style, parts)


def test_bos_can_be_left_out():
    """add_bos "never" adds none."""
    prompt = builder().build([TextPart("hi")], add_bos="never")
    assert text_of(prompt) == "hi"


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("chatml", "<|im_start|>assistant\n"),
        ("inst", "[/INST]"),
        ("llava", "ASSISTANT:"),
        ("thinker", "<|im_start|>assistant\n<think>\n"),
    ],
)
def test_open_empty_assistant_turn_is_the_generation_prompt(style, expected):
    """The prompt of a chat ends where the answer begins."""
    assert text_of(builder(style).build([user("hi"), ANSWER])).endswith(expected)


@pytest.mark.parametrize("style", TEMPLATES)
def test_answer_so_far_extends_the_prompt(style):
    """An open turn that holds the answer so far has the earlier prompt as its beginning."""
    before = builder(style).build([user("hi"), ANSWER])
    after = builder(style).build(
        [user("hi"), Turn("assistant", (TextPart(" yes, "),), is_open=True)]
    )
    assert text_of(before) + " yes, " == text_of(after)


@pytest.mark.parametrize(
    ("style", "expected"), [("llava", "ASSISTANT: Sure"), ("inst", "[/INST] Sure")]
)
def test_text_of_the_program_gets_the_templates_blank(style, expected):
    """An open turn begun by the program stands as the template would put it."""
    turn = Turn("assistant", (TextPart("Sure"),), is_open=True)
    assert text_of(builder(style).build([user("hi"), turn])).endswith(expected)


def test_open_user_turn_has_no_end():
    """Any role may be left open."""
    turn = Turn("user", (TextPart("go on "),), is_open=True)
    assert text_of(builder("chatml").build([turn])).endswith("<|im_start|>user\ngo on ")


def test_open_turn_must_be_the_last():
    """A turn open in the middle has no meaning."""
    with pytest.raises(BadRequest, match="only the last"):
        builder("chatml").build([ANSWER, user("hi")])


def test_text_outside_of_turns_stands_untemplated():
    """Text before and after a conversation is neither wrapped nor a control token."""
    prompt = builder("inst").build([TextPart("<s>A"), user("q"), TextPart("B</s>")])
    assert text_of(prompt) == "<s><s>A[INST] q [/INST]B</s>"
    assert len(controls(prompt)) == 1


def test_tokens_are_taken_as_they_are():
    """Token ids pass through, and no BOS is added to them."""
    prompt = builder().build([TokensPart((5, 6)), TextPart("a")])
    assert [5, 6, *MERGES.encode_plain("a")] == prompt.token_ids.tolist()


# Media


@pytest.mark.parametrize("style", ["chatml", "llava", "inst"])
@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_order_of_text_and_pictures_is_kept(style, role):
    """Pictures stand exactly where their parts stand, in every role and template."""
    turn = Turn(role, (TextPart("A"), P, TextPart("B"), P, TextPart("C")))
    lead = [] if role != "assistant" else [user("x")]
    tail = [user("y")] if role != "user" else []
    prompt = builder(style).build([*lead, turn, *tail], media("p", "q"))
    assert f"A{'<image>' * 3}B{'<image>' * 3}C" in text_of(prompt)
    assert [Item("p").digest, Item("q").digest] == [span.digest for span in prompt.spans]


def test_template_places_pictures_where_it_keeps_their_order():
    """A picture before its question gets what the template writes around it."""
    prompt = builder("llava").build([user(P, "What?"), ANSWER], media("p"))
    assert f"<s>USER: {'<image>' * 3}\nWhat? ASSISTANT:" == text_of(prompt)


def test_spans_cover_the_placeholders():
    """Spans say where each picture's tokens are, after BOS too."""
    prompt = builder().build(
        [TextPart("a"), P, TextPart("b"), P], [[Item("p")], [Item("q", 2)]]
    )
    assert [(span.start, span.end) for span in prompt.spans] == [(2, 5), (6, 8)]
    for span in prompt.spans:
        assert {MERGES.token_id("<image>")} == {
            *prompt.token_ids[span.start : span.end].tolist()
        }


def test_literal_placeholder_is_text():
    """A user's literal placeholder is no slot, before or after the picture."""
    for parts in (("Is <image> a tag?", P), (P, "<image> and <image>?")):
        prompt = builder("llava").build([user(*parts), ANSWER], media("p"))
        assert prompt.token_ids.tolist().count(MERGES.token_id("<image>")) == 3
        assert "".join(p for p in parts if isinstance(p, str)) in text_of(prompt).replace(
            "<image>" * 3, "", 1
        ).replace("\n", "")


def test_frames_are_labelled():
    """A clip is "frame k:" and the picture, nothing between, in and outside of turns."""
    frames = [Item("f", 2, "video", 0.0), Item("g", 2, "video", 1.0)]
    expected = "frame 1:<image><image>frame 2:<image><image>"
    for parts in ([V], [user(V, "?")]):
        prompt = builder("chatml").build(parts, [frames])
        assert expected in text_of(prompt)
        assert prompt.num_video_tokens == 4


def test_clips_and_pictures_keep_their_order():
    """A picture goes where the template puts it even beside a clip, which goes in as text."""
    frames = [Item("f", 1, "video", 0.0)]
    prompt = builder("llava").build([user(P, V, "?")], [[Item("p", 1)], frames])
    assert text_of(prompt) == "<s>USER: <image>\nframe 1:<image>? "
    assert [span.kind for span in prompt.spans] == ["image", "video"]


def test_models_with_clips_of_their_own():
    """A native clip has its own token and no labels."""
    video_id = MERGES.token_id("<video>")
    frames = [Item("f", 2, "video", 0.0), Item("g", 2, "video", 1.0)]
    prompt = builder(
        media=MediaStyle(image_token_id=MERGES.token_id("<image>"), video_token_id=video_id)
    ).build([V], [frames])
    assert [MERGES.bos_token_id, *[video_id] * 4] == prompt.token_ids.tolist()


def test_style_stands_around_pictures_outside_of_templates():
    """Families that wrap pictures get their marks where no template writes them."""
    style = PictureStyle("<|im_start|>", "<|im_end|>")
    prompt = builder(picture_style=style).build([TextPart("a"), P], media("p"))
    assert f"<s>a<|im_start|>{'<image>' * 3}<|im_end|>" == text_of(prompt)
    assert len(set(controls(prompt)) - {MERGES.bos_token_id}) == 3


def test_style_is_taken_from_the_template():
    """What a template writes around pictures also stands around those outside of it."""
    tokens = builder().build([P], media("p"), chat_template=None)
    assert text_of(tokens) == "<s><image><image><image>"
    wrapping = PromptBuilder(
        MERGES,
        ChatTemplate(WRAPPED, MERGES.special_tokens),
        media=MediaStyle(image_token_id=MERGES.token_id("<image>")),
    )
    expected = f"<|im_start|>{'<image>' * 3}<|im_end|>"
    assert f"<s>{expected}" == text_of(wrapping.build([P], media("p")))
    assert f"a{expected}b" in text_of(wrapping.build([user("a", P, "b")], media("p")))


def test_atomic_spans_say_so():
    """An item's two-way attention is passed on."""
    prompt = builder().build([P], [[Item("p", is_atomic=True)]])
    assert prompt.spans[0].is_atomic


def test_text_only_model_refuses_pictures():
    """Media for a model without eyes is refused, never ignored."""
    with pytest.raises(MediaRefused, match="does not see"):
        builder("chatml", media=None).build([user(P)], media("p"))


def test_pieces_of_a_program_equal_the_chat():
    """The byte vocabulary's builder gives role tokens, text bytes and media tokens."""
    prompt = byte_prompt_builder().build([user("hi", P), ANSWER], media("p"))
    expected = "<s><|user|>hi<image><image><image><|end|><|assistant|>"
    assert BYTES.encode_template(expected) == prompt.token_ids.tolist()
