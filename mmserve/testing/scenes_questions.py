"""Questions about a scene whose answers follow from its layout alone.

Every maker takes a layout and a source of chance and gives one `Question`, or None where the
layout allows no unambiguous one. Answers have one canonical form, so that an exact match is
well defined.
"""

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from PIL import Image

from mmserve.testing.scenes_words import PLURALS, place_words, spoken
from mmserve.testing.scenes_world import COLOURS, PLACES, SHAPES, SIZES, Layout, Thing

__all__ = ["MAKERS", "Question", "compare_pictures", "describe_layout"]


@dataclass(frozen=True, slots=True)
class Question:
    """One question and its only right answer.

    `history` holds earlier turns about the same pictures as (question, answer). With
    `other_image`, the question is about two pictures: the scene's own is picture 1, this one
    is picture 2.
    """

    kind: str
    question: str
    answer: str
    history: tuple[tuple[str, str], ...] = ()
    other_image: Image.Image | None = None


Maker = Callable[[Layout, random.Random], Question | None]


def describe_layout(layout: Layout) -> str:
    """The compact JSON of `layout`; it satisfies `SCENE_SCHEMA`."""
    objects = [
        {"place": t.place, "size": t.size, "colour": t.colour, "shape": t.shape}
        for t in layout.things
    ]
    return json.dumps({"objects": objects, "number": layout.number}, separators=(",", ":"))


def name_uniquely(
    layout: Layout, thing: Thing, rng: random.Random, hidden: str = ""
) -> str | None:
    """Words such as "the red circle" that fit only `thing`; `hidden` is left out."""
    fields = [name for name in ("size", "colour", "shape") if name != hidden]
    fits = []
    for chosen in range(2 ** len(fields)):
        used = [name for bit, name in enumerate(fields) if chosen >> bit & 1]
        matches = sum(
            all(getattr(t, f) == getattr(thing, f) for f in used) for t in layout.things
        )
        if matches == 1:
            fits.append(used)
    if not fits:
        return None
    used = rng.choice(fits)
    words = [getattr(thing, f) for f in ("size", "colour") if f in used]
    return " ".join(["the", *words, thing.shape if "shape" in used else "object"])


def plural(colour: str | None, shape: str | None) -> str:
    """Words such as "red circles" or "objects"."""
    noun = PLURALS[shape] if shape else "objects"
    return f"{colour} {noun}" if colour else noun


def count(layout: Layout, colour: str | None, shape: str | None) -> int:
    """How many things have this colour and shape; None fits all. Pure."""
    return sum(
        (colour is None or t.colour == colour) and (shape is None or t.shape == shape)
        for t in layout.things
    )


def _mostly_present(
    field: str, everything: tuple[str, ...], layout: Layout, rng: random.Random
) -> str:
    if rng.random() < 0.7:
        return str(getattr(rng.choice(layout.things), field))
    return rng.choice(everything)


def ask_count(layout: Layout, rng: random.Random) -> Question:
    """How many objects."""
    words = spoken("count", rng, what=rng.choice(("objects", "objects", "things", "shapes")))
    return Question("count", words, str(len(layout.things)))


def ask_count_shape(layout: Layout, rng: random.Random) -> Question:
    """How many of a shape."""
    shape = _mostly_present("shape", SHAPES, layout, rng)
    words = spoken("count", rng, what=plural(None, shape))
    return Question("count_shape", words, str(count(layout, None, shape)))


def ask_count_colour(layout: Layout, rng: random.Random) -> Question:
    """How many of a colour, sometimes of a colour and a shape."""
    colour = _mostly_present("colour", COLOURS, layout, rng)
    shape = rng.choice(SHAPES) if rng.random() < 0.15 else None
    words = spoken("count", rng, what=plural(colour, shape))
    return Question("count_colour", words, str(count(layout, colour, shape)))


def ask_what_at(layout: Layout, rng: random.Random) -> Question:
    """What is at a place: a thing, the number or nothing."""
    lot = rng.random()
    if lot < 0.65:
        place = rng.choice(layout.things).place
    elif lot < 0.8 and layout.number_place is not None:
        place = layout.number_place
    else:
        place = rng.choice(PLACES)
    words = spoken("what_at", rng, at=place_words(place, rng))
    return Question("what_at", words, content(layout, place))


def content(layout: Layout, place: str) -> str:
    """The canonical words for what is at `place`. Pure."""
    if layout.number_place == place:
        return f"the number {layout.number}"
    thing = layout.at(place)
    return thing.phrase if thing else "nothing"


def ask_where(layout: Layout, rng: random.Random) -> Question | None:
    """Where a thing is, or the number."""
    if layout.number_place is not None and rng.random() < 0.2:
        return Question("where", spoken("where", rng, what="the number"), layout.number_place)
    thing = rng.choice(layout.things)
    name = name_uniquely(layout, thing, rng)
    if name is None:
        return None
    return Question("where", spoken("where", rng, what=name), thing.place)


def _ask_attribute(field: str) -> Maker:
    def ask(layout: Layout, rng: random.Random) -> Question | None:
        thing = rng.choice(layout.things)
        name: str | None = f"the object {place_words(thing.place, rng)}"
        if rng.random() < 0.6:
            name = name_uniquely(layout, thing, rng, hidden=field)
        if name is None:
            return None
        return Question(field, spoken(field, rng, what=name), str(getattr(thing, field)))

    return ask


def ask_exists(layout: Layout, rng: random.Random) -> Question:
    """Whether there is such a thing; half the answers are yes."""
    thing = rng.choice(layout.things)
    colour, shape = thing.colour, thing.shape
    if rng.random() < 0.5:
        if rng.random() < 0.5:
            colour = rng.choice(COLOURS)
        else:
            shape = rng.choice(SHAPES)
    lot = rng.random()
    size = rng.choice(SIZES) if lot < 0.15 else None
    if size is None and lot < 0.35:
        colour = ""
    elif size is None and lot < 0.55:
        shape = ""
    words = " ".join(word for word in (size, colour, shape or "object") if word)
    present = any(
        size in (None, t.size) and colour in ("", t.colour) and shape in ("", t.shape)
        for t in layout.things
    )
    article = "an" if words[0] in "aeiou" else "a"
    asked = spoken("exists", rng, what=f"{article} {words}")
    return Question("exists", asked, "yes" if present else "no")


def ask_number(layout: Layout, rng: random.Random) -> Question:
    """Which number is written."""
    answer = "none" if layout.number is None else str(layout.number)
    return Question("number", spoken("number", rng), answer)


def ask_compare_counts(layout: Layout, rng: random.Random) -> Question:
    """Which of two shapes or two colours there are more of."""
    field, everything = rng.choice((("shape", SHAPES), ("colour", COLOURS)))
    first = str(getattr(rng.choice(layout.things), field))
    second = _mostly_present(field, everything, layout, rng)
    while second == first:
        second = rng.choice(everything)
    if rng.random() < 0.5:
        first, second = second, first
    have = Counter(getattr(t, field) for t in layout.things)
    answer = _larger(have[first], have[second], first, second)
    if field == "colour":
        asked = spoken("compare_counts", rng, first=first, second=f"{second} objects")
        return Question("compare_counts", asked, answer)
    asked = spoken("compare_counts", rng, first=PLURALS[first], second=PLURALS[second])
    return Question("compare_counts", asked, PLURALS.get(answer, answer))


def _larger(left: int, right: int, first: str, second: str) -> str:
    if left == right:
        return "equal"
    return first if left > right else second


def ask_describe(layout: Layout, rng: random.Random) -> Question:
    """The whole scene as JSON."""
    return Question("describe", spoken("describe", rng), describe_layout(layout))


def ask_follow_up(layout: Layout, rng: random.Random) -> Question | None:
    """A second turn that only makes sense after the first."""
    lot = rng.randrange(3)
    if lot == 0:
        first = ask_count(layout, rng)
        colour: str | None = _mostly_present("colour", COLOURS, layout, rng)
        shape: str | None = None
        if rng.random() < 0.5:
            colour, shape = None, _mostly_present("shape", SHAPES, layout, rng)
        asked = spoken("of_them", rng, what=colour or PLURALS[str(shape)])
        answer = str(count(layout, colour, shape))
    elif lot == 1:
        first = ask_what_at(layout, rng)
        place = rng.choice(PLACES)
        asked = spoken("and_at", rng, at=place_words(place, rng))
        answer = content(layout, place)
    else:
        thing = rng.choice(layout.things)
        name = name_uniquely(layout, thing, rng)
        if name is None:
            return None
        first = Question("where", spoken("where", rng, what=name), thing.place)
        field = rng.choice(("size", "colour", "shape"))
        asked, answer = spoken(field, rng, what="it"), str(getattr(thing, field))
    return Question("follow_up", asked, answer, ((first.question, first.answer),))


def compare_pictures(first: Layout, second: Layout, rng: random.Random) -> Question:
    """Which of two pictures has more of something, or the larger number.

    The caller attaches the other picture.
    """
    if first.number is not None and second.number is not None and rng.random() < 0.3:
        answer = _larger(first.number, second.number, "picture 1", "picture 2")
        return Question("compare_pictures", spoken("compare_numbers", rng), answer)
    model = rng.choice((first, second))
    lot = rng.random()
    colour = _mostly_present("colour", COLOURS, model, rng) if lot < 0.3 else None
    shape = _mostly_present("shape", SHAPES, model, rng) if 0.3 <= lot < 0.6 else None
    left, right = count(first, colour, shape), count(second, colour, shape)
    asked = spoken("compare_pictures", rng, what=plural(colour, shape))
    return Question("compare_pictures", asked, _larger(left, right, "picture 1", "picture 2"))


MAKERS: dict[str, Maker] = {
    "count": ask_count,
    "count_shape": ask_count_shape,
    "count_colour": ask_count_colour,
    "what_at": ask_what_at,
    "where": ask_where,
    "colour": _ask_attribute("colour"),
    "shape": _ask_attribute("shape"),
    "size": _ask_attribute("size"),
    "exists": ask_exists,
    "number": ask_number,
    "compare_counts": ask_compare_counts,
    "follow_up": ask_follow_up,
    "describe": ask_describe,
}
