"""Seeded rows for the programs of `program_bodies`: who shares what with whom.

workload             shared by all         shared by some        own
choice_short         5 examples                                  question, 4 short options
choice_long          6 examples                                  question, 4 long endings
quiz                 5 examples                                  question, options, 1 token
react                examples                                    task, 3 steps
generative_agents    world                 an agent's memories   event
tree_of_thought      rules                 branches of a riddle
skeleton             rules                 branches of a topic
judge                rules                 branches of an essay
json                 rules                                       document
chat_short, _long    rules                 turns of a chat
documents                                  documents, in order   questions
retrieval            examples              passages, in no order question
picture_questions                          a picture             question
clip_questions                             a clip of 4 frames    questions
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from PIL import Image

from benchmarks import program_bodies as bodies
from benchmarks.program_model import PICTURE_SIZE
from mmserve.lang import Program

__all__ = ["SEED", "WORKLOADS", "Workload", "workloads"]

SEED = 0
_VOCABULARY = (
    "river stone lamp child boat wall market bread window garden winter letter road music"
    " table forest bridge teacher morning village small old quiet bright slow heavy green early"
    " carries finds leaves opens paints builds follows counts keeps sees near under behind with"
    " every another some no the a"
)
_WORDS = _VOCABULARY.split()


@dataclass(frozen=True, slots=True)
class Workload:
    """A program and its rows. `values` are what every gen inherits."""

    name: str
    program: Program
    rows: Sequence[dict[str, Any]]
    has_media: bool = False

    @property
    def num_programs(self) -> int:
        """Rows."""
        return len(self.rows)

    @property
    def values(self) -> dict[str, Any]:
        """Greedy, and of a fixed length wherever no grammar ends an answer."""
        return {"temperature": 0.0, "ignore_eos": True}


class Writer:
    """Draws texts and pictures. Mutable: its generator moves on."""

    def __init__(self, name: str) -> None:
        self._random = Random(f"{SEED} {name}")

    def text(self, num_words: int) -> str:
        """A sentence without sense. Changes: the generator."""
        words = self._random.choices(_WORDS, k=num_words)
        return " ".join(words).capitalize() + "."

    def texts(self, count: int, num_words: int) -> list[str]:
        """Several. Changes: the generator."""
        return [self.text(num_words) for _ in range(count)]

    def some(self, items: Sequence[str], count: int) -> list[str]:
        """Some of them in a random order. Changes: the generator."""
        return self._random.sample(list(items), count)

    def picture(self) -> bytes:
        """Coloured clouds as PNG. Changes: the generator."""
        coarse = Image.frombytes("RGB", (6, 6), self._random.randbytes(108))
        size = (PICTURE_SIZE, PICTURE_SIZE)
        buffer = io.BytesIO()
        coarse.resize(size, Image.Resampling.BICUBIC).save(buffer, "PNG")
        return buffer.getvalue()


Maker = Callable[[Writer, int], tuple[Program, list[dict[str, Any]]]]


def _choice_short(writer: Writer, size: int) -> tuple[Program, list[dict[str, Any]]]:
    letters = (" A", " B", " C", " D")
    shots = _shots(writer, 5, 24, " A")
    return bodies.choose, [
        {"shots": shots, "question": writer.text(24), "options": letters}
        for _ in range(3 * size)
    ]


def _choice_long(writer: Writer, size: int) -> tuple[Program, list[dict[str, Any]]]:
    shots = _shots(writer, 6, 16, " " + writer.text(8))
    return bodies.choose, [
        {
            "shots": shots,
            "question": writer.text(12),
            "options": [" " + ending for ending in writer.texts(4, 10)],
        }
        for _ in range(2 * size)
    ]


def _quiz(writer: Writer, size: int) -> tuple[Program, list[dict[str, Any]]]:
    def asked() -> str:
        options = zip("ABCD", writer.texts(4, 4), strict=True)
        return "\n".join((writer.text(16), *(f"{one}. {text}" for one, text in options)))

    shots = "".join(f"{asked()}\nAnswer: {letter}\n\n" for letter in "BDACB")
    return bodies.answer_in_a_token, [
        {"shots": shots, "question": asked()} for _ in range(3 * size)
    ]


def _shots(writer: Writer, count: int, num_words: int, answer: str) -> str:
    questions = writer.texts(count, num_words)
    return "".join(f"{question}\nAnswer:{answer}\n\n" for question in questions)


def _react(writer: Writer, size: int) -> tuple[Program, list[dict[str, Any]]]:
    examples = "\n".join(writer.texts(6, 20))
    return bodies.react, [
        {"examples": examples, "task": writer.text(10), "observations": writer.texts(3, 10)}
        for _ in range(2 * size)
    ]


def _generative_agents(writer: Writer, size: int) -> tuple[Program, list[dict[str, Any]]]:
    world, agents = writer.text(50), writer.texts(2 * size, 60)
    return bodies.live, [
        {"world": world, "memories": memories, "event": writer.text(8)}
        for _ in range(4)
        for memories in agents
    ]


def _tree_of_thought(writer: Writer, size: int) -> tuple[Program, list[dict[str, Any]]]:
    rules = writer.text(40)
    return bodies.think_in_trees, [
        {"rules": rules, "riddle": writer.text(40), "width": 3} for _ in range(size)
    ]


def _skeleton(writer: Writer, size: int) -> tuple[Program, list[dict[str, Any]]]:
    rules = writer.text(50)
    return bodies.write_by_skeleton, [
        {"rules": rules, "topic": writer.text(20), "num_points": 4} for _ in range(size)
    ]


def _judge(writer: Writer, size: int) -> tuple[Program, list[dict[str, Any]]]:
    rules, qualities = writer.text(30), ("clarity", "originality", "evidence", "order")
    return bodies.judge_essay, [
        {"rules": rules, "essay": writer.text(110), "qualities": qualities} for _ in range(size)
    ]


def _json(writer: Writer, size: int) -> tuple[Program, list[dict[str, Any]]]:
    rules = writer.text(60)
    return bodies.extract, [
        {"rules": rules, "document": writer.text(50)} for _ in range(2 * size)
    ]


def _chat_short(writer: Writer, size: int) -> tuple[Program, list[dict[str, Any]]]:
    rules = writer.text(30)
    return bodies.chat, [
        {"rules": rules, "questions": writer.texts(4, 25), "max_tokens": 6}
        for _ in range(2 * size)
    ]


def _chat_long(writer: Writer, size: int) -> tuple[Program, list[dict[str, Any]]]:
    rules = writer.text(30)
    return bodies.chat, [
        {"rules": rules, "questions": writer.texts(3, 25), "max_tokens": 48}
        for _ in range(size)
    ]


def _documents(writer: Writer, size: int) -> tuple[Program, list[dict[str, Any]]]:
    pairs = [writer.texts(2, 60) for _ in range(2)]
    rows = []
    for number in range(size):
        documents = [*pairs[number % 2], writer.text(40)]
        rows.append({"documents": documents, "questions": writer.texts(3, 10)})
    return bodies.answer_from_documents, rows


def _retrieval(writer: Writer, size: int) -> tuple[Program, list[dict[str, Any]]]:
    examples, passages = "\n".join(writer.texts(5, 20)), writer.texts(6, 25)
    return bodies.answer_with_search, [
        {
            "examples": examples,
            "question": writer.text(10),
            "passages": writer.some(passages, 3),
        }
        for _ in range(2 * size)
    ]


def _picture_questions(writer: Writer, size: int) -> tuple[Program, list[dict[str, Any]]]:
    pictures = [writer.picture() for _ in range(size)]
    return bodies.ask_about_picture, [
        {"picture": picture, "question": writer.text(8)}
        for _ in range(5)
        for picture in pictures
    ]


def _clip_questions(writer: Writer, size: int) -> tuple[Program, list[dict[str, Any]]]:
    rows = []
    for _ in range((size + 1) // 2):
        frames = [writer.picture() for _ in range(4)]
        rows.append({"frames": frames, "questions": writer.texts(5, 8)})
    return bodies.ask_about_clip, rows


_MAKERS: dict[str, Maker] = {
    "choice_short": _choice_short,
    "choice_long": _choice_long,
    "quiz": _quiz,
    "react": _react,
    "generative_agents": _generative_agents,
    "tree_of_thought": _tree_of_thought,
    "skeleton": _skeleton,
    "judge": _judge,
    "json": _json,
    "chat_short": _chat_short,
    "chat_long": _chat_long,
    "documents": _documents,
    "retrieval": _retrieval,
    "picture_questions": _picture_questions,
    "clip_questions": _clip_questions,
}
_WITH_MEDIA = ("picture_questions", "clip_questions")
WORKLOADS = tuple(_MAKERS)


def workloads(names: Sequence[str], size: int) -> list[Workload]:
    """Workloads by name, `size` times as large as the smallest; the same for the same size.

    Pure. Cost: milliseconds.
    """
    made = []
    for name in names:
        program, rows = _MAKERS[name](Writer(name), size)
        made.append(Workload(name, program, rows, has_media=name in _WITH_MEDIA))
    return made
