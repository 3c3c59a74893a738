"""Four ways in which prompts share pictures, with the least that any engine must compute.

    grid     P pictures, Q questions each          BOS [picture] q     KV of a picture is shared
    forks    a picture, a text, branches of        BOS [picture] text b a f
             branches, each behind an answer
    chat     pictures and questions turn by turn   BOS [p1] q1 a1 [p2] q2 a2 ...
    places   the same pictures, each behind        BOS text_u [picture] q
             another user's own text               KV is not shared, encoded pictures are

The tokens of one answer are computed but for the last one, which is only computed if a later
prompt goes on from it. A BOS is common to all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.media_asks import Answers, Ask, OneStep, Picture, Program, Writer

__all__ = ["FAMILIES", "Chat", "Forks", "Sizes", "Work", "family"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Lengths, in tokens, that all families have in common."""

    picture: int = 576
    question: int = 16
    answer: int = 8
    text: int = 48
    side_pixels: int = 336
    vocab: int = 32000


@dataclass(frozen=True, slots=True)
class Work:
    """Programs of one family.

    Args:
        name: of the family.
        programs: what is run at once.
        num_asks: prompts that all of them ask.
        least_tokens: positions that must be computed, prompts and answers.
        least_encodes: different pictures.
    """

    name: str
    programs: Sequence[Program]
    num_asks: int
    least_tokens: int
    least_encodes: int


@dataclass(frozen=True, slots=True)
class Forks:
    """A picture and a text, branches that are answered, and branches of these.

    Args:
        name: begins the ids of its asks.
        picture: what all is about.
        text: what follows it.
        branches: the first question of each branch, and those that follow its answer.
        num_answer: tokens of every answer.
    """

    name: str
    picture: Picture
    text: tuple[int, ...]
    branches: Sequence[tuple[tuple[int, ...], Sequence[tuple[int, ...]]]]
    num_answer: int

    def next_asks(self, answers: Answers) -> Sequence[Ask]:
        """See `Program`."""
        head = (self.picture, self.text)
        firsts = [
            Ask(f"{self.name}-{number}", (*head, first), self.num_answer)
            for number, (first, _) in enumerate(self.branches)
        ]
        if firsts[0].ask_id not in answers:
            return firsts
        later = [
            Ask(
                f"{ask.ask_id}-{number}",
                (*head, first + answers[ask.ask_id] + follow_up),
                self.num_answer,
            )
            for ask, (first, follow_ups) in zip(firsts, self.branches, strict=True)
            for number, follow_up in enumerate(follow_ups)
        ]
        return () if later[0].ask_id in answers else later


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation that shows another picture in every turn.

    Args:
        name: begins the ids of its asks.
        turns: picture and question of each.
        num_answer: tokens of every answer.
    """

    name: str
    turns: Sequence[tuple[Picture, tuple[int, ...]]]
    num_answer: int

    def next_asks(self, answers: Answers) -> Sequence[Ask]:
        """See `Program`."""
        items: list[Picture | tuple[int, ...]] = []
        for number, (picture, question) in enumerate(self.turns):
            ask_id = f"{self.name}-{number}"
            items += [picture, question]
            if ask_id not in answers:
                return [Ask(ask_id, tuple(items), self.num_answer)]
            items.append(answers[ask_id])
        return ()


def family(name: str, scale: int, sizes: Sizes, seed: int = 0) -> Work:
    """A family, `scale` times as large as the smallest. Pure. Raises KeyError for a name."""
    return FAMILIES[name](Writer(sizes.vocab, seed), scale, sizes)


def _grid(writer: Writer, scale: int, sizes: Sizes) -> Work:
    num_pictures, num_questions = scale, 6
    programs = [
        OneStep(
            tuple(
                Ask(f"grid-{i}-{j}", (picture, question), sizes.answer)
                for j, question in enumerate(writer.questions(num_questions, sizes.question))
            )
        )
        for i, picture in enumerate(_pictures(writer, num_pictures, sizes))
    ]
    own = sizes.question + sizes.answer - 1
    least = 1 + num_pictures * (sizes.picture + num_questions * own)
    return Work("grid", programs, num_pictures * num_questions, least, num_pictures)


def _forks(writer: Writer, scale: int, sizes: Sizes) -> Work:
    num_branches, num_later = 3, 2
    programs = [
        Forks(
            f"forks-{i}",
            picture,
            writer.words(sizes.text),
            [
                (first, writer.questions(num_later, sizes.question))
                for first in writer.questions(num_branches, sizes.question)
            ],
            sizes.answer,
        )
        for i, picture in enumerate(_pictures(writer, scale, sizes))
    ]
    branch = sizes.question + sizes.answer
    branch += num_later * (sizes.question + sizes.answer - 1)
    least = 1 + scale * (sizes.picture + sizes.text + num_branches * branch)
    return Work("forks", programs, scale * num_branches * (1 + num_later), least, scale)


def _chat(writer: Writer, scale: int, sizes: Sizes) -> Work:
    num_turns = 4
    programs = [
        Chat(
            f"chat-{i}",
            list(
                zip(
                    _pictures(writer, num_turns, sizes),
                    writer.questions(num_turns, sizes.question),
                    strict=True,
                )
            ),
            sizes.answer,
        )
        for i in range(scale)
    ]
    turn = sizes.picture + sizes.question + sizes.answer
    least = 1 + scale * (num_turns * turn - 1)
    return Work("chat", programs, scale * num_turns, least, scale * num_turns)


def _places(writer: Writer, scale: int, sizes: Sizes) -> Work:
    num_pictures, num_users = 2, 4 * scale
    pictures = _pictures(writer, num_pictures, sizes)
    beginnings = writer.questions(num_users, 1)
    programs, num_own = [], 0
    for user, beginning in enumerate(beginnings):
        text = beginning + writer.words(writer.number(0, 2 * sizes.text))
        items = (text, pictures[user % num_pictures], writer.words(sizes.question))
        programs.append(OneStep((Ask(f"places-{user}", items, sizes.answer),)))
        num_own += len(text)
    rest = sizes.picture + sizes.question + sizes.answer - 1
    return Work("places", programs, num_users, 1 + num_own + num_users * rest, num_pictures)


def _pictures(writer: Writer, count: int, sizes: Sizes) -> list[Picture]:
    return [writer.picture(sizes.side_pixels) for _ in range(count)]


FAMILIES = {"grid": _grid, "forks": _forks, "chat": _chat, "places": _places}
