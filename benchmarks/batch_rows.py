"""Rows of the batch tool about generated clips, whose right answers are known."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmserve.testing import clip
from mmserve.testing.clips import Clip
from mmserve.testing.scenes import TEST_SEEDS
from mmserve.testing.scenes_questions import Question
from mmserve.testing.scenes_stories import ask_story

__all__ = ["MAX_FRAMES", "Job", "card_accuracy", "questions_about", "write_job"]

MAX_FRAMES = 8
"""That `tabletop` was trained for, and is measured with on its card."""
_FIRST = 10_000
"""The card's first clip, in `TEST_SEEDS`."""
_CARD = Path(__file__).parent / "results" / "tabletop_accuracy.json"


@dataclass(frozen=True, slots=True)
class Job:
    """A file of rows, one question each.

    Args:
        source: the file.
        expected: kind of question and right answer, row by row.
        num_clips: different ones.
        num_frames: of all clips.
    """

    source: Path
    expected: Sequence[tuple[str, str]]
    num_clips: int
    num_frames: int

    @property
    def num_rows(self) -> int:
        """Questions. Pure."""
        return len(self.expected)


def write_job(folder: Path, num_clips: int, num_rows: int) -> Job:
    """As many questions about each of the card's first clips, shuffled.

    Changes: `folder`. Cost: 60 ms a clip.
    """
    rows: list[tuple[dict[str, str], tuple[str, str]]] = []
    num_frames = 0
    for number in range(num_clips):
        seed = TEST_SEEDS[_FIRST + number]
        film = clip(seed)
        num_frames += len(film.frames)
        path = folder / f"{seed}.mp4"
        path.write_bytes(film.mp4)
        num_asked = num_rows // num_clips + (number < num_rows % num_clips)
        for place, q in enumerate(questions_about(film, num_asked)):
            row = {"id": f"{seed}-{place}", "video": str(path), "question": q.question}
            rows.append((row, (q.kind, q.answer)))
    random.Random(num_rows).shuffle(rows)
    source = folder / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row, _ in rows), encoding="utf-8")
    return Job(source, [known for _, known in rows], num_clips, num_frames)


def questions_about(film: Clip, count: int) -> list[Question]:
    """Questions of as many different wordings about a clip, its kinds in turn. Pure."""
    chance = random.Random(f"job {film.seed}")
    found: dict[str, Question] = {}
    while len(found) < count:
        for one in ask_story(film.story, chance):
            if len(found) < count:
                found.setdefault(one.question, one)
    return list(found.values())


def card_accuracy(kinds: Iterable[str]) -> float:
    """What the card's record expects of questions of these kinds."""
    record = json.loads(_CARD.read_text(encoding="utf-8"))
    exact: Mapping[str, float] = {row["kind"]: row["exact"] for row in record["rows"]}
    counts = Counter(kinds)
    return sum(n * exact[kind] for kind, n in counts.items()) / counts.total()
