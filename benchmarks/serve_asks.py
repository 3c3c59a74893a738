"""Questions about generated pictures whose right answers are known, and calls that are wrong.

answered   a question about a scene; what it must say is known before
left       an endless answer, whose client leaves after the first words
refused    a call that must get a 4xx
"""

from __future__ import annotations

import base64
import io
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from PIL import Image

from mmserve.testing import TEST_SEEDS, scene

__all__ = ["Ask", "Kind", "Shown", "draw_asks", "scenes", "swap_seen_share"]

Kind = Literal["answered", "left", "refused"]
_FIRST = 20_000
_ENDLESS_TOKENS = 1500
_MOST_TOKENS = 160
_WHOLE_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Shown:
    """One question about one picture.

    Args:
        picture: a data: address.
        question: as it is asked.
        truth: the right answer.
        said: what the server says to it alone; "" until it was asked.
    """

    picture: str = field(repr=False)
    question: str = ""
    truth: str = ""
    said: str = ""

    def body(self, **fields: Any) -> dict[str, Any]:  # noqa: ANN401
        """A greedy call of the chat route. Pure."""
        content = [
            {"type": "image_url", "image_url": {"url": self.picture}},
            {"type": "text", "text": self.question},
        ]
        return {
            "messages": [{"role": "user", "content": content}],
            "temperature": 0,
            "max_tokens": _MOST_TOKENS,
            **fields,
        }


@dataclass(frozen=True, slots=True)
class Ask:
    """One call and what must become of it; `expected` is "" where nothing is said."""

    kind: Kind
    body: dict[str, Any] = field(repr=False)
    expected: str = ""

    @property
    def is_stream(self) -> bool:
        """Whether the answer comes in pieces. Pure."""
        return bool(self.body.get("stream"))


def scenes(count: int, first: int = _FIRST) -> list[Shown]:
    """All questions about `count` new pictures that need one picture and no earlier turns."""
    found = []
    for seed in TEST_SEEDS[first : first + count]:
        drawn = scene(seed)
        address = _address(drawn.image)
        found += [
            Shown(address, one.question, one.answer)
            for one in drawn.questions
            if one.other_image is None and not one.history
        ]
    return found


def _address(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def draw_asks(
    shown: Sequence[Shown], count: int, *, left_share: float, refused_share: float, seed: int
) -> list[Ask]:
    """Calls in random order, with exactly these shares of the two odd kinds. Pure."""
    dice = random.Random(seed)
    num_left, num_refused = round(count * left_share), round(count * refused_share)
    kinds: list[Kind] = ["answered"] * (count - num_left - num_refused)
    kinds.extend(["left"] * num_left)
    kinds.extend(["refused"] * num_refused)
    dice.shuffle(kinds)
    return [_ask(kind, dice.choice(shown), dice) for kind in kinds]


def _ask(kind: Kind, shown: Shown, dice: random.Random) -> Ask:
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    if kind == "left":
        endless = {"max_tokens": _ENDLESS_TOKENS, "ignore_eos": True}
        return Ask(kind, shown.body(**streamed, **endless))
    how = {} if dice.random() < _WHOLE_SHARE else streamed
    if kind == "refused":
        return Ask(kind, _wrong(shown, dice) | how)
    return Ask(kind, shown.body(**how), shown.said or shown.truth)


def _wrong(shown: Shown, dice: random.Random) -> dict[str, Any]:
    """A body with one fault."""
    broken = Shown("data:image/png;base64,bm90IGEgcGljdHVyZQ==", shown.question)
    return dice.choice(
        (
            shown.body(max_tokens=-1),
            shown.body(regex="("),
            shown.body(no_such_field=1),
            shown.body(model="another"),
            broken.body(),
        )
    )


def swap_seen_share(expected: Sequence[str]) -> float:
    """How likely it shows when a call gets the answer of another one, drawn by lot. Pure."""
    counts = {text: expected.count(text) for text in set(expected)}
    return 1.0 - sum((count / len(expected)) ** 2 for count in counts.values())
