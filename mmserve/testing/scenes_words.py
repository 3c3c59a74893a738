"""The wordings of questions about scenes, and the small grammar around them."""

import random

__all__ = ["LEADS", "PLURALS", "WORDINGS", "place_words", "spoken"]

PLURALS = {
    "circle": "circles",
    "square": "squares",
    "triangle": "triangles",
    "star": "stars",
    "cross": "crosses",
}

_PLACE_WORDS = {
    "top left": ("top left", "top left", "top left corner", "upper left", "upper left corner"),
    "top": ("top", "top", "top middle", "top centre", "top center", "upper middle"),
    "top right": ("top right", "top right", "top right corner", "upper right"),
    "left": ("left", "left", "middle left", "left side", "centre left", "center left"),
    "centre": ("centre", "centre", "center", "middle"),
    "right": ("right", "right", "middle right", "right side", "centre right", "center right"),
    "bottom left": ("bottom left", "bottom left", "bottom left corner", "lower left"),
    "bottom": ("bottom", "bottom", "bottom middle", "bottom centre", "bottom center"),
    "bottom right": ("bottom right", "bottom right", "bottom right corner", "lower right"),
}

LEADS = (
    "Answer briefly.",
    "Please answer in a few words.",
    "Look at the picture.",
    "Look carefully.",
    "Be brief.",
)

WORDINGS: dict[str, tuple[str, ...]] = {
    "count": (
        "How many {what} are there?",
        "How many {what} are in the picture?",
        "How many {what} do you see?",
        "How many {what} can you see?",
        "Count the {what}.",
        "What is the number of {what}?",
    ),
    "what_at": (
        "What is {at}?",
        "What do you see {at}?",
        "What object is {at}?",
        "What can be seen {at}?",
        "Which object is {at}?",
        "Name the object {at}.",
    ),
    "where": (
        "Where is {what}?",
        "At which place is {what}?",
        "In which place is {what}?",
        "Where can you see {what}?",
        "Where do you see {what}?",
        "What is the place of {what}?",
    ),
    "colour": (
        "What colour is {what}?",
        "Which colour is {what}?",
        "Which colour does {what} have?",
        "What is the colour of {what}?",
        "What color is {what}?",
    ),
    "shape": (
        "What shape is {what}?",
        "Which shape is {what}?",
        "Which shape does {what} have?",
        "What is the shape of {what}?",
    ),
    "size": (
        "What size is {what}?",
        "Which size is {what}?",
        "Which size does {what} have?",
        "What is the size of {what}?",
        "How large is {what}?",
        "How big is {what}?",
    ),
    "exists": (
        "Is there {what}?",
        "Is there {what} in the picture?",
        "Do you see {what}?",
        "Can you see {what}?",
        "Does the picture show {what}?",
    ),
    "number": (
        "What number is written?",
        "What number is written in the picture?",
        "Which number is written?",
        "Which number do you see?",
        "What number is printed?",
        "Read the number.",
    ),
    "compare_counts": (
        "Are there more {first} or {second}?",
        "Which are more, {first} or {second}?",
        "What is there more of, {first} or {second}?",
        "Do you see more {first} or {second}?",
    ),
    "compare_pictures": (
        "Which picture has more {what}?",
        "Which picture shows more {what}?",
        "In which picture are there more {what}?",
        "Which of the two pictures has more {what}?",
    ),
    "compare_numbers": (
        "Which picture has the larger number?",
        "Which picture shows the larger number?",
        "In which picture is the number larger?",
        "Which picture has the bigger number?",
    ),
    "describe": (
        "Describe the picture as JSON.",
        "Describe as JSON.",
        "Describe this scene as JSON.",
        "Describe the image as JSON.",
        "Give a JSON description of the picture.",
        "Write the scene as JSON.",
    ),
    "of_them": (
        "How many of them are {what}?",
        "And how many of them are {what}?",
        "How many are {what}?",
        "And how many are {what}?",
    ),
    "and_at": ("And {at}?", "And what is {at}?", "What about {at}?", "What is {at}?"),
    "direction": (
        "Which way did {what} move?",
        "In which direction did {what} move?",
        "Which direction did {what} move in?",
        "Where to did {what} move?",
    ),
    "moved_in": (
        "In which frame did {what} move?",
        "In which frame does {what} move?",
        "At which frame did {what} move?",
        "When did {what} move?",
    ),
    "appeared_in": (
        "In which frame did {what} appear?",
        "In which frame does {what} appear?",
        "At which frame did {what} appear?",
        "When did {what} appear?",
    ),
    "disappeared_in": (
        "In which frame did {what} disappear?",
        "In which frame does {what} disappear?",
        "At which frame did {what} disappear?",
        "When did {what} disappear?",
    ),
    "turned_in": (
        "In which frame did {what} change its colour?",
        "In which frame does {what} change colour?",
        "At which frame did the colour of {what} change?",
        "When did {what} change colour?",
    ),
    "change": (
        "What changed?",
        "What changed in the video?",
        "What happened?",
        "What happens in the clip?",
        "What is the change?",
    ),
    "count_end": (
        "How many objects are there at the end?",
        "How many objects are in the last frame?",
        "How many objects do you see at the end?",
        "Count the objects at the end.",
    ),
    "count_start": (
        "How many objects are there at the start?",
        "How many objects are in the first frame?",
        "How many objects do you see at the start?",
        "Count the objects at the start.",
    ),
}


def spoken(kind: str, rng: random.Random, **words: str) -> str:
    """A wording of `kind` filled with `words`, as careless as people write it.

    One in ten has an instruction before it, one in six starts with a small letter and one in
    six lacks its final mark. Changes: `rng`.
    """
    text = rng.choice(WORDINGS[kind]).format(**words)
    text = text[0].upper() + text[1:]
    if rng.random() < 1 / 6:
        text = text.rstrip("?.")
    if rng.random() < 1 / 6:
        text = text[0].lower() + text[1:]
    if rng.random() < 0.1:
        text = f"{rng.choice(LEADS)} {text}"
    return text


def place_words(place: str, rng: random.Random) -> str:
    """A phrase such as "in the upper left" for `place`. Changes: `rng`."""
    words = rng.choice(_PLACE_WORDS[place])
    return rng.choice(("at the ", "at the ", "in the ", "on the ", "at ")) + words
