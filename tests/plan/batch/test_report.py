"""The report: one page that holds, escapes and says everything."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mmserve.batch import AskSettings, Record, Row, RowFault, Tally
from mmserve.batch.report import Report, check_place, draw_strips, find_rows, write_report
from mmserve.batch.report.page import report_page
from mmserve.core import BadRequest, MediaRefused, PromptLook, SpanLook, Timing, Usage

EVIL = "<script>alert(1)</script> &amp; [red]\"'{{ 7 * 7 }}"
JPEG = b"\xff\xd8\xff some pixels"


class Renderer:
    """Shows three frames of each clip, and refuses a clip that is gone."""

    def render(self, request) -> PromptLook:
        """See `core.ports.Client`."""
        if "gone" in repr(request.parts):
            raise MediaRefused("no such file <b>", reason="fetch_failed")
        spans = tuple(
            SpanLook(
                identity=f"{number}",
                kind="video",
                start=number,
                num_tokens=1,
                width=8,
                height=8,
                timestamps_s=(number / 2,),
                pictures=(JPEG,),
            )
            for number in range(20)
        )
        return PromptLook(token_ids=tuple(range(30)), spans=spans)


def tally(num_rows: int = 12) -> Tally:
    """A run whose every fourth row failed; all its texts are hostile."""
    run = Tally(total=num_rows, kept_answered=0, kept_failed=0)
    for line in range(1, num_rows + 1):
        record = Record(
            row_id=EVIL,
            line=line,
            question_index=0,
            question=EVIL,
            answer=None if line % 4 == 0 else f"{EVIL} {line}",
            error=("bad<row>", EVIL) if line % 4 == 0 else None,
            frames_used=3,
            timestamps_s=(0.0, 1.0, 2.0),
            usage=Usage(100, 10, cached_tokens=60),
            timing=Timing(prefill=5.0 * line, total=20.0),
        )
        run.add(record)
    return run


def report(run: Tally | None = None, **fields: object) -> Report:
    """A report with strips of two rows."""
    run = run or tally()
    rows = [
        Row(line=1, row_id="a", questions=("q",), video="a.mp4"),
        Row(line=2, row_id="b", questions=("q",), video="gone.mp4"),
    ]
    given = {
        "title": EVIL,
        "summary": run.summary(),
        "counted": run.counted,
        "settings": [("output", EVIL)],
        "strips": draw_strips(Renderer(), rows, AskSettings()),
    } | fields
    return Report(**given)


class Reader(HTMLParser):
    """Names of elements, addresses and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs) -> None:
        """Note it."""
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "data")]

    def handle_data(self, data) -> None:
        """Note it."""
        self.text += data


def test_text_of_rows_is_escaped() -> None:
    """Questions, answers, ids, errors and settings appear as they are, and as text alone."""
    page = report_page(report())
    found = Reader(page)
    assert "script" not in found.tags
    assert "<script" not in page
    assert found.text.count(EVIL) >= 20
    assert "bad<row>" in found.text
    assert "no such file <b>" in found.text


def test_the_page_needs_nothing_else() -> None:
    """Pictures are inside, nothing is fetched, and the browser is told to fetch nothing."""
    page = report_page(report())
    assert {address[:23] for address in Reader(page).addresses} == {"data:image/jpeg;base64,"}
    assert "default-src 'none'" in page
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org)", page)


def test_the_page_has_every_part() -> None:
    """Numbers, four plots, errors by kind with their count, samples and settings."""
    found = Reader(report_page(report()))
    assert found.tags.count("svg") == 4
    for told in ("60%", "12", "from cache", "tokens generated", "Errors", "Settings"):
        assert told in found.text
    assert re.search(r"3\s+bad<row>", found.text)


def test_a_strip_has_eight_of_many_frames() -> None:
    """Spread evenly, each with its time, and the page says how many there are."""
    page = report_page(report())
    assert page.count("<img") == 8
    assert "8 of 20 frames" in page


def test_an_unfinished_run_says_so() -> None:
    """With the reason; a finished one says that."""
    assert "Not finished: <bdi>it was interrupted" in report_page(
        report(ended="it was interrupted")
    )
    assert "Finished, with failed rows" in report_page(report())


def test_a_run_without_records_has_a_page() -> None:
    """No plot, no sample, and no division by nothing."""
    run = Tally(total=3, kept_answered=3, kept_failed=0)
    found = Reader(report_page(report(run, strips={})))
    assert "svg" not in found.tags
    assert "None in this run." in found.text


def test_the_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """A page that cannot be made leaves the old file, and no other."""
    place = tmp_path / "run.html"
    place.write_text("old")
    with pytest.raises(AttributeError):
        write_report(report(settings=None, counted=None), place)
    assert [path.name for path in tmp_path.iterdir()] == ["run.html"]
    assert place.read_text() == "old"
    write_report(report(), place)
    assert place.read_text().startswith("<!doctype html>")
    assert [path.name for path in tmp_path.iterdir()] == ["run.html"]


def test_a_report_must_have_a_place(tmp_path: Path) -> None:
    """A missing folder, a folder, and the output itself are refused before the run."""
    output = tmp_path / "out.jsonl"
    for place, reason in (
        (tmp_path / "no" / "run.html", "missing"),
        (tmp_path, "folder"),
        (output, "same_file"),
    ):
        with pytest.raises(BadRequest) as found:
            check_place(place, (output,))
        assert found.value.fields["reason"] == reason


def test_rows_are_found_by_line() -> None:
    """Reading stops behind the last wanted row, and faults are passed over."""
    read = []

    def rows():
        for line in range(1, 100):
            read.append(line)
            if line == 2:
                yield RowFault(line=2, row_id="x", questions=(None,), message="m")
            else:
                yield Row(line=line, row_id=line, questions=("q",), video="a.mp4")

    assert [row.line for row in find_rows(rows(), [5, 3])] == [3, 5]
    assert read[-1] == 5
