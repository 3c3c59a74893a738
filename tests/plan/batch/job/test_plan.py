"""The order of the work."""

import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmserve.batch import AskSettings, parse_row, request_of
from mmserve.batch.formats import RawRow
from mmserve.batch.job import JobIndex, Kept, Plan, route_of, survey
from mmserve.core import Busy


class Lines:
    """Rows of this process."""

    def __init__(self, rows) -> None:
        self.rows = rows

    def __iter__(self):
        """Counted from 1."""
        for line, row in enumerate(self.rows, start=1):
            yield RawRow(line, json.dumps(row).encode())

    def parse(self, raw):
        """As a line of a file."""
        return parse_row(raw.line, raw.content)


def planned(tmp_path: Path, rows, done=(), num_clips: int = 1) -> list[int]:
    """Lines in the order of the plan; those that are done have all their records."""
    with_path = tmp_path / "x.progress"
    with_path.unlink(missing_ok=True)
    index = JobIndex(with_path)
    survey(Lines(rows), index, AskSettings())
    index.commit()
    index.write(Kept((line, 0, 0), b"", is_error=False, content=b"\n") for line in done)
    lines = [row.line for row in Plan(index, num_clips).rows()]
    index.close()
    return lines


def row(video: str, question: str = "q", **fields: object) -> dict[str, object]:
    """A row about a clip."""
    return {"video": video, "question": question} | fields


def test_a_clips_rows_are_neighbours_wherever_they_stand(tmp_path):
    """Group by group, as they first appear, and by question within a group."""
    rows = [row("b", "z"), row("a", "z"), row("b", "y"), row("c"), row("a", "y"), row("b", "x")]
    assert planned(tmp_path, rows) == [6, 3, 1, 5, 2, 4]


def test_rows_that_share_a_beginning_are_neighbours(tmp_path):
    """Window before sampling, sampling before the question."""
    rows = [
        row("a", "q1", start_s=1.0),
        row("a", "q1"),
        row("a", "q2", start_s=1.0),
        row("a", "q2", num_frames=2),
        row("a", "q2"),
        row("a", "q1", num_frames=2),
    ]
    assert planned(tmp_path, rows) == [2, 5, 6, 4, 1, 3]


def test_leading_pictures_are_shared(tmp_path):
    """Rows that begin with the same picture are neighbours, and among them those that go on."""
    images = [["a", "b"], ["c"], ["a", "d"], ["a"], ["a", "b", "c"], ["a", "d"]]
    rows = [{"images": names, "question": "q"} for names in images]
    lines = planned(tmp_path, rows)
    assert sorted(lines[:5]) == [1, 3, 4, 5, 6]
    assert (lines[0], abs(lines.index(1) - lines.index(5))) == (4, 1)
    assert abs(lines.index(3) - lines.index(6)) == 1


def test_one_file_under_two_names_is_one_group(tmp_path, monkeypatch):
    """Paths are compared as places on disk; addresses as they are."""
    monkeypatch.chdir(tmp_path)
    rows = [row("x/../a"), row("b"), row(str(tmp_path / "a")), row("http://h/a")]
    assert planned(tmp_path, rows) == [1, 3, 2, 4]


def test_the_last_groups_go_longest_first(tmp_path):
    """No long clip is begun last; those before keep their order."""
    sizes = [1, 5, 1, 1, 1, 1, 1, 9]
    rows = [row(f"v{n}", str(q)) for n, size in enumerate(sizes) for q in range(size)]
    order = planned(tmp_path, [*[row("first")] * 40, *rows], num_clips=1)
    videos = [([{"video": "first"}] * 40 + rows)[line - 1]["video"] for line in order]
    groups = list(dict.fromkeys(videos))
    assert groups == ["first", "v7", "v1", "v0", "v2", "v3", "v4", "v5", "v6"]


def test_what_is_done_is_not_planned(tmp_path):
    """Only rows with a record due are in the plan."""
    assert planned(tmp_path, [row("a"), row("b"), row("c")], done=[2]) == [1, 3]


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4).filter(
    lambda text: text.strip()
)


@given(texts, texts, st.sampled_from([None, 0.5, 3.0]), st.sampled_from([None, 0.5, 3.0]))
def test_keys_compare_as_what_they_are_made_of(one, other, start_s, other_start_s):
    """By window first, then by the bytes of the question."""

    def key(question, start_s):
        found = parse_row(1, json.dumps(row("a", question, start_s=start_s)).encode())
        return route_of(found, request_of(found, 0, AskSettings())).key

    expected = (start_s or 0.0, one.encode()) < (other_start_s or 0.0, other.encode())
    assert (key(one, start_s) < key(other, other_start_s)) == expected


def test_a_survey_that_is_not_committed_leaves_nothing(tmp_path):
    """A run killed before its first question starts its survey again."""
    path = tmp_path / "x.progress"
    index = JobIndex(path)
    survey(Lines([row("a")]), index, AskSettings())
    index.close()
    index = JobIndex(path)
    assert index.is_new
    index.close()


def test_an_index_has_one_writer(tmp_path):
    """The second run is told so at once."""
    index = JobIndex(tmp_path / "x.progress")
    with pytest.raises(Busy, match="another run is writing"):
        JobIndex(tmp_path / "x.progress")
    index.close()


def test_memory_does_not_grow_with_the_rows(tmp_path):
    """Ten times the rows take no more of Python's memory to survey and to plan."""

    def most_bytes(num_rows: int, again: int = 0) -> int:
        rows = Lines(row(f"v{n % 50}", f"q{n}") for n in range(num_rows))
        index = JobIndex(tmp_path / f"{num_rows}-{again}.progress")
        tracemalloc.start()
        survey(rows, index, AskSettings())
        index.commit()
        assert sum(1 for _ in Plan(index, 4).rows()) == num_rows
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        index.close()
        return most

    most_bytes(30)  # what is made once
    few_rows = most_bytes(300)
    many_rows = min(most_bytes(3000, again) for again in range(2))  # others' threads allocate
    assert many_rows < few_rows + 100_000
