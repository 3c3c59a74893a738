"""Streams of requests in the shapes of language-model programs, recorded with their answers.

Every text token is random, so that requests share exactly what their program shares. A request
that goes on where an answer ended names that request in `after`: its prompt holds the answer.
Shapes follow SGLang: Efficient Execution of Structured Language Model Programs (2024), section
6 and appendix A, scaled to some hundreds of tokens; pictures and clips are ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mmserve.core import MediaSpan, Prompt

__all__ = ["MEDIA_ID", "NUM_CLIENTS", "SHAPES", "VOCAB_SIZE", "Ask", "stream"]

VOCAB_SIZE = 1 << 20
"""Large, so that random prompts do not begin alike by chance."""

MEDIA_ID = VOCAB_SIZE - 1
NUM_CLIENTS = 4
"""Programs are dealt round to so many clients."""

Tokens = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Ask:
    """One request of a stream, with its recorded answer.

    Args:
        answer: int64 [a], a >= 1, tokens that the model draws.
        client: who asks.
        after: place in the stream of the request whose answer this one goes on from, or None.
    """

    prompt: Prompt
    answer: Tokens
    client: str
    after: int | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and answer."""
        return self.prompt.num_tokens + len(self.answer)


Part = Tokens | tuple[bytes, int]
"""Text int64 [n], or a picture as (digest, tokens)."""


class _Writer:
    """Collects the requests of one shape."""

    def __init__(self, seed: int) -> None:
        self.asks: list[Ask] = []
        self._random = np.random.default_rng(seed)
        self._num_programs = 0

    def text(self, num_tokens: int) -> Tokens:
        """New text of about that length: up to a fifth shorter or longer."""
        spread = num_tokens // 5
        length = num_tokens + int(self._random.integers(-spread, spread + 1))
        return self._random.integers(0, MEDIA_ID, length, dtype=np.int64)

    def picture(self, num_tokens: int) -> tuple[bytes, int]:
        """A new picture or frame."""
        return self._random.bytes(16), num_tokens

    def program(self) -> str:
        """Begin a program; the name of its client."""
        self._num_programs += 1
        return f"client-{self._num_programs % NUM_CLIENTS}"

    def ask(
        self, client: str, parts: list[Part], answer_tokens: int, after: int | None = None
    ) -> tuple[int, Tokens]:
        """Record a request; its place and its answer."""
        answer = self.text(answer_tokens)
        asked = Ask(prompt=_prompt(parts), answer=answer, client=client, after=after)
        self.asks.append(asked)
        return len(self.asks) - 1, answer


def _prompt(parts: list[Part]) -> Prompt:
    token_ids, spans, start = [], [], 0
    for part in parts:
        if isinstance(part, tuple):
            digest, num_tokens = part
            spans.append(MediaSpan(digest, start, num_tokens))
            token_ids.append(np.full(num_tokens, MEDIA_ID, dtype=np.int64))
        else:
            num_tokens = len(part)
            token_ids.append(part)
        start += num_tokens
    return Prompt(np.concatenate(token_ids), tuple(spans))


def _few_shot(write: _Writer, size: int) -> None:
    """MMLU: subjects of 20 questions behind the same five examples; one token is answered."""
    for _ in range(max(1, size // 20)):
        client, examples = write.program(), write.text(400)
        for _ in range(20):
            write.ask(client, [examples, write.text(60)], 1)


def _choice_tree(write: _Writer, size: int) -> None:
    """HellaSwag: twenty examples for all, a question, and four endings of it to score."""
    examples = write.text(400)
    for _ in range(size // 4):
        client, question = write.program(), write.text(80)
        for _ in range(4):
            write.ask(client, [examples, question, write.text(20)], 1)


def _react(write: _Writer, size: int) -> None:
    """ReAct: five rounds of thought and observation behind the same examples."""
    examples = write.text(350)
    for _ in range(size // 5):
        parts: list[Part] = [examples, write.text(30)]
        _chain(write, parts, num_rounds=5, answer_tokens=20, input_tokens=50)


def _agents(write: _Writer, size: int) -> None:
    """Generative agents: a persona behind common rules, and a memory that grows."""
    rules = write.text(120)
    for _ in range(size // 8):
        parts: list[Part] = [rules, write.text(100)]
        _chain(write, parts, num_rounds=8, answer_tokens=10, input_tokens=40)


def _chat(write: _Writer, size: int) -> None:
    """Multi-turn chat: five turns behind a system prompt."""
    system = write.text(60)
    for _ in range(size // 5):
        parts: list[Part] = [system, write.text(80)]
        _chain(write, parts, num_rounds=5, answer_tokens=30, input_tokens=70)


def _chain(
    write: _Writer,
    parts: list[Part],
    *,
    num_rounds: int,
    answer_tokens: int,
    input_tokens: int,
) -> None:
    client, after = write.program(), None
    for _ in range(num_rounds):
        after, answer = write.ask(client, parts, answer_tokens, after)
        parts = [*parts, answer, write.text(input_tokens)]


def _thought_tree(write: _Writer, size: int) -> None:
    """Tree of thought: two thoughts are drawn at each of four levels, 30 requests a problem."""
    rules = write.text(200)
    for _ in range(max(1, size // 30)):
        client = write.program()
        level: list[tuple[list[Part], int | None]] = [([rules, write.text(80)], None)]
        for _ in range(4):
            drawn = [
                (parts, *write.ask(client, parts, 25, after))
                for parts, after in level
                for _ in range(2)
            ]
            cue = write.text(5)
            level = [([*parts, answer, cue], place) for parts, place, answer in drawn]


def _thought_skeleton(write: _Writer, size: int) -> None:
    """Skeleton of thought: an outline, then five points of it written out side by side."""
    rules = write.text(150)
    for _ in range(size // 6):
        client, parts = write.program(), [rules, write.text(50)]
        place, outline = write.ask(client, parts, 40)
        for _ in range(5):
            write.ask(client, [*parts, outline, write.text(10)], 25, place)


def _self_consistency(write: _Writer, size: int) -> None:
    """Self-consistency: the same prompt, behind common examples, is answered eight times."""
    examples = write.text(200)
    for _ in range(size // 8):
        client, question = write.program(), write.text(100)
        for _ in range(8):
            write.ask(client, [examples, question], 20)


def _documents(write: _Writer, size: int) -> None:
    """Document question answering: ten questions a document."""
    rules = write.text(30)
    for _ in range(size // 10):
        client, document = write.program(), write.text(500)
        for _ in range(10):
            write.ask(client, [rules, document, write.text(25)], 8)


def _pictures(write: _Writer, size: int) -> None:
    """Ten questions a picture of 256 tokens."""
    rules = write.text(30)
    for _ in range(size // 10):
        client, picture = write.program(), write.picture(256)
        for _ in range(10):
            write.ask(client, [rules, picture, write.text(25)], 8)


def _growing_video(write: _Writer, size: int) -> None:
    """A clip that goes on: ten windows from its beginning, two questions each."""
    rules = write.text(30)
    for _ in range(size // 20):
        client, frames = write.program(), [write.picture(36) for _ in range(20)]
        for end in range(2, 22, 2):
            for _ in range(2):
                write.ask(client, [rules, *frames[:end], write.text(20)], 4)


def _sliding_video(write: _Writer, size: int) -> None:
    """A clip that goes on: five windows of its last eight frames, four questions each."""
    rules = write.text(30)
    for _ in range(size // 20):
        client, frames = write.program(), [write.picture(36) for _ in range(16)]
        for start in range(0, 10, 2):
            for _ in range(4):
                window = frames[start : start + 8]
                write.ask(client, [rules, *window, write.text(20)], 4)


_SINGLE: dict[str, Callable[[_Writer, int], None]] = {
    "few-shot": _few_shot,
    "choice-tree": _choice_tree,
    "react": _react,
    "agents": _agents,
    "thought-tree": _thought_tree,
    "thought-skeleton": _thought_skeleton,
    "self-consistency": _self_consistency,
    "chat": _chat,
    "documents": _documents,
    "pictures": _pictures,
    "growing-video": _growing_video,
    "sliding-video": _sliding_video,
}

SHAPES = (*_SINGLE, "mixture")


def stream(shape: str, size: int) -> tuple[Ask, ...]:
    """About `size` requests of one shape, by program; the mixture has some of every shape.

    Pure: the same on every machine.
    """
    if shape != "mixture":
        write = _Writer(seed=SHAPES.index(shape))
        _SINGLE[shape](write, size)
        return tuple(write.asks)
    asks: list[Ask] = []
    for name in _SINGLE:
        part = stream(name, max(20, size // len(_SINGLE)))
        shift = len(asks)
        asks += [
            replace(ask, client=name, after=None if ask.after is None else ask.after + shift)
            for ask in part
        ]
    return tuple(asks)
