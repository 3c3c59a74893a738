"""The benchmarks of the batch tool: their rows, their order, and the moments of kills."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
from support.scripted_client import ScriptedClient

from benchmarks.batch_job import right_by_kind
from benchmarks.batch_kills import LineCount, moments
from benchmarks.batch_rows import Job, card_accuracy, questions_about
from benchmarks.job_order import RowOrder
from mmserve.batch import BatchRun, BatchSettings
from mmserve.batch.job import Plan
from mmserve.testing.scenes_stories import ask_story, sample_story


def test_questions_about_a_clip_are_all_different():
    """As many as wanted, of every kind that its story answers."""
    story = sample_story(random.Random(1))
    found = questions_about(SimpleNamespace(seed=1, story=story), 50)
    assert len({one.question for one in found}) == 50
    kinds = {one.kind for one in ask_story(story, random.Random(0))}
    assert {one.kind for one in found} == kinds


def test_an_answer_is_compared_with_that_of_its_line(tmp_path):
    """Records in any order; no answer is a wrong one."""
    job = Job(tmp_path, [("count_end", "3"), ("count_end", "4"), ("change", "x")], 1, 4)
    records = [{"line": 3, "answer": "x "}, {"line": 1, "answer": None}]
    assert right_by_kind(job, records) == {"change": (1, 1), "count_end": (0, 1)}


def test_the_card_is_weighed_by_kinds():
    """Two kinds count as often as they are asked."""
    one, other = (card_accuracy([kind]) for kind in ("change", "count_end"))
    assert card_accuracy(["change", "count_end"]) == pytest.approx((one + other) / 2)


@pytest.mark.parametrize(("num_kills", "num_starts"), [(1, 0), (3, 1), (20, 4)])
def test_kills_are_spread_over_the_run(num_kills, num_starts):
    """Some while it starts, one at the end, the others as the records grow."""
    found = moments(num_kills, 300, 5.0, random.Random(0))
    assert (len(found), found[-1].phase) == (num_kills, "end")
    assert sum(one.phase == "start" for one in found) == num_starts
    goals = [one.after for one in found if one.phase == "work"]
    assert goals == sorted(goals)


def test_lines_are_counted_as_a_file_grows_and_when_it_is_replaced(tmp_path):
    """A half line is none; another file under the name is counted from its start."""
    path = tmp_path / "out"
    counted = LineCount(path)
    assert counted.now() == 0
    path.write_bytes(b"a\nb")
    assert counted.now() == 1
    with path.open("ab") as file:
        file.write(b"c\nd\n")
    assert counted.now() == 3
    (tmp_path / "other").write_bytes(b"a\n")
    (tmp_path / "other").replace(path)
    assert counted.now() == 1


@pytest.mark.parametrize(("order", "asked"), [(Plan, "aabb"), (RowOrder, "abba")])
def test_row_order_is_that_of_the_file(tmp_path, order, asked):
    """Clips of the requests, by the planner and as they stand."""
    source = tmp_path / "in.jsonl"
    rows = [f'{{"video": "{name}.mp4", "question": "{n}"}}\n' for n, name in enumerate("abba")]
    source.write_text("".join(rows))
    client = ScriptedClient()
    settings = BatchSettings(concurrency=1)
    with BatchRun(source, tmp_path / "out.jsonl", settings, order) as run:
        run.answer(client)
    names = [ticket.request.parts[0].parts[0].source.path for ticket in client.tickets]
    assert "".join(str(name)[0] for name in names) == asked
