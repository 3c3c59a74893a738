"""Token ids of options behind a prompt equal those of whole renderings, for every template."""

import random

import pytest
from plan.prompt.media import Item
from plan.prompt.vocabularies import NAMED, TEMPLATES, VOCABULARIES
from tokenizers import AddedToken, Regex, normalizers
from tokenizers import Tokenizer as Backend

from mmserve.core import ImagePart, MediaStyle, PathSource, RawPart, TextPart, TokensPart, Turn
from mmserve.prompt import (
    ChatTemplate,
    OptionTokens,
    PromptBuilder,
    Stretch,
    Tokenizer,
    with_text,
)

PICTURE = ImagePart(PathSource("p.png"))
MEDIA = [[Item("p")]]
WORDS = (
    "How many",
    " red",
    " cubes",
    "the",
    " table?",
    "th",
    "un",
    "ree",
    " ",
    "\n",
    "é",
    "日",
)
OPTIONS = (
    *(" red", "red", "the", "e", "ing", "  two", " ", "\n\nthe", "re are three red cubes"),
    *("</s>", "<image>", "</think>", "日本", "é", "́", "👩‍👧", "?", "ball, left of the red one"),
)
TOKENIZERS = {
    name: Tokenizer(make(), special_tokens=NAMED) for name, make in VOCABULARIES.items()
}


def copy_of(vocabulary: str) -> Backend:
    """A vocabulary of one's own, to be changed."""
    return Backend.from_str(VOCABULARIES[vocabulary]().to_str())


def builder(style: str | None, vocabulary: str) -> PromptBuilder:
    """A builder with one of the templates and one of the vocabularies."""
    tokenizer = TOKENIZERS[vocabulary]
    template = None if style is None else ChatTemplate(TEMPLATES[style], NAMED)
    return PromptBuilder(
        tokenizer, template, media=MediaStyle(image_token_id=tokenizer.token_id("<image>"))
    )


def brute_force(build, tokenizer: Tokenizer, parts, option: str, media) -> tuple[int, ...]:
    """The rule word for word, by rendering prompt and option together."""
    before = build(parts, media).token_ids.tolist()
    joined = build(with_text(parts, option), media).token_ids.tolist()
    if len(joined) > len(before) and joined[: len(before)] == before:
        return tuple(joined[len(before) :])
    return tuple(tokenizer.encode_inside(option))


def found(made: PromptBuilder, parts, media) -> OptionTokens:
    """What the engine asks."""
    goes_on = made.goes_on_behind(parts)
    render_with = None
    if not goes_on:

        def render_with(option: str):
            return made.build(with_text(parts, option), media)

    return OptionTokens(made.tokenizer, made.render(parts, media), render_with)


def drawn_text(rng: random.Random, most: int) -> str:
    """Random words, some of which merge with their neighbours."""
    return "".join(rng.choices(WORDS, k=rng.randint(1, most)))


def check(made: PromptBuilder, parts, media=()) -> None:
    """Every option has the tokens that brute force gives."""
    tokens = found(made, parts, media)
    for option in OPTIONS:
        wanted = brute_force(made.build, made.tokenizer, parts, option, media)
        assert tokens.ids(option) == wanted, (parts, option)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("style", TEMPLATES)
def test_in_conversations_as_by_rendering_all(style: str, vocabulary: str) -> None:
    """With the answer's turn empty and begun, whatever the template writes before a text."""
    rng = random.Random(f"{style} {vocabulary}")
    made = builder(style, vocabulary)
    for _ in range(6):
        turns = [Turn("user", (TextPart(drawn_text(rng, 9)),))]
        begun = (TextPart(drawn_text(rng, 3)),) if rng.random() < 0.5 else ()
        check(made, (*turns, Turn("assistant", begun, is_open=True)))


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_behind_bare_parts_as_by_rendering_all(vocabulary: str) -> None:
    """Behind text, template text, token ids and pictures, short and long."""
    rng = random.Random(vocabulary)
    made = builder(None, vocabulary)
    for most in (3, 9, 400, 2000):
        text = TextPart(drawn_text(rng, most))
        check(made, (text,))
        check(made, (RawPart("<|im_start|>user\n" + text.text + "<|im_end|>"),))
        check(made, (RawPart("<|im_start|>"), text))
        check(made, (text, TokensPart((5, 6))))
        check(made, (text, PICTURE), MEDIA)
        check(made, (PICTURE, text), MEDIA)
        check(made, (text, PICTURE, RawPart("<|im_end|>"), text), MEDIA)


def test_a_closed_turn_is_followed_by_plain_text() -> None:
    """An option behind a whole conversation stands outside of it."""
    check(builder("chatml", "byte_level"), (Turn("user", (TextPart("the"),)),))


def test_only_what_an_option_can_change_is_tokenized_for_it(monkeypatch) -> None:
    """Behind a control token, and at the end of a long text, few characters are."""
    made = builder("chatml", "byte_level")
    long = "How many red cubes are on the table? " * 100
    sizes: list[int] = []
    encode = Tokenizer.encode_stretches

    def counted(self, stretches, *, at_start=True):
        stretches = list(stretches)
        sizes.append(sum(len(stretch.text) for stretch in stretches))
        return encode(self, stretches, at_start=at_start)

    for parts in (
        (Turn("user", (TextPart(long),)), Turn("assistant", (), is_open=True)),
        (TextPart(long),),
    ):
        tokens = found(made, parts, ())
        monkeypatch.setattr(Tokenizer, "encode_stretches", counted)
        for option in OPTIONS:
            tokens.ids(option)
        monkeypatch.undo()
    assert sizes
    assert max(sizes) < 400


def test_a_control_token_that_takes_blanks_in_takes_those_of_an_option() -> None:
    """What it swallows is not a token of the option, whether blanks stand there already."""
    backend = copy_of("byte_level")
    backend.add_special_tokens([AddedToken("<mask>", special=True, rstrip=True)])
    tokenizer = Tokenizer(backend, special_tokens=NAMED)
    made = PromptBuilder(
        tokenizer, media=MediaStyle(image_token_id=tokenizer.token_id("<image>"))
    )
    for text in ("the <mask>", "the<mask>  ", "the <mask> red", "<|im_start|><mask>"):
        check(made, (RawPart(text),))


def test_last_words_that_an_option_changes_as_a_whole_show_nothing() -> None:
    """Then all of the text is asked: here texts that begin with a blank and end loudly."""
    backend = copy_of("byte_level")
    backend.normalizer = normalizers.Replace(Regex(r"\A .*!\z"), "loud")
    tokenizer = Tokenizer(backend, special_tokens=NAMED)
    made = PromptBuilder(
        tokenizer, media=MediaStyle(image_token_id=tokenizer.token_id("<image>"))
    )
    parts = (TextPart("How many red cubes are on the table?" + " How many?" * 70),)
    wanted = brute_force(made.build, tokenizer, parts, " Three!", ())
    assert found(made, parts, ()).ids(" Three!") == wanted
    assert wanted != tuple(tokenizer.encode_inside(" Three!"))


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_settled_text_has_the_same_tokens_apart(vocabulary: str) -> None:
    """The tokens of both halves, one after the other, are those of the whole."""
    tokenizer = TOKENIZERS[vocabulary]
    rng = random.Random(3)
    for _ in range(200):
        stretches = [
            Stretch(
                rng.choice(("<|im_start|>", "<|im_end|>\n", "</think>"))
                if is_template
                else drawn_text(rng, 3),
                is_template,
            )
            for is_template in rng.choices((True, False), k=rng.randint(0, 5))
        ]
        first, second = tokenizer.split_settled(stretches)
        parts = tokenizer.encode_stretches(first)
        parts += tokenizer.encode_stretches(second, at_start=not first)
        assert parts == tokenizer.encode_stretches(stretches)
