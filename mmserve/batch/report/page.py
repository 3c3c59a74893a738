"""A run's report as one HTML file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mmserve.batch.counting import Counted, Sample
from mmserve.batch.report.pictures import Strip
from mmserve.batch.report.plots import course_plot, hit_rate_plot, stage_plot
from mmserve.batch.summary import Summary, duration_told
from mmserve.core import BadRequest

__all__ = ["Report", "check_place", "report_page", "write_report"]

_TEMPLATE = Path(__file__).with_name("page.html.jinja")
_HEADLINE_STAGES = ("first_token", "total")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the page tells.

    Args:
        title: of the run, such as the name of its input.
        summary: its sums.
        counted: the rest.
        settings: name and value of each, without keys.
        ended: why it is not finished; None if it is.
        strips: pictures of samples by line; empty if there are none, then `no_pictures` says
            why.
        no_pictures: a sentence.
        written: date and time.
    """

    title: str
    summary: Summary
    counted: Counted
    settings: Sequence[tuple[str, str]] = ()
    ended: str | None = None
    strips: Mapping[int, Strip] = field(default_factory=dict)
    no_pictures: str | None = None
    written: str = ""


def check_place(path: Path, others: Sequence[Path]) -> None:
    """Raises BadRequest if a report cannot be written to `path`, or it is one of `others`."""
    if not path.parent.is_dir():
        message = f"report {path}: there is no folder {path.parent}"
        raise BadRequest(message, field="report", reason="missing", hint="make it first")
    if path.is_dir():
        message = f"report {path} is a folder"
        raise BadRequest(message, field="report", reason="folder", hint="give a file in it")
    if path.resolve() in {other.resolve() for other in others}:
        message = f"report and another file of the run are the same, {path}"
        raise BadRequest(message, field="report", reason="same_file", hint="give another file")


def write_report(report: Report, path: Path) -> None:
    """Put the page at `path`, whole or not at all. Changes: the file."""
    content = report_page(report).encode("utf-8", "replace")
    place = path.resolve()
    handle, spare = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        mode = place.stat().st_mode & 0o777 if place.exists() else 0o644
        Path(spare).chmod(mode)
        Path(spare).replace(place)
    except BaseException:
        Path(spare).unlink(missing_ok=True)
        raise


def report_page(report: Report) -> str:
    """The page. Pure."""
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 - most runs want no report
    from markupsafe import Markup  # noqa: PLC0415

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["count"] = lambda number: f"{number:,}"
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    # Only drawings are put in unescaped: the canvas escapes each word and title itself.
    plots = [(title, note, Markup(svg)) for title, note, svg in _plots(report)]
    return template.render(
        report=report,
        headlines=_headlines(report.summary),
        plots=plots,
        faults=report.counted.faults.kinds(),
        samples=[_shown(report, sample) for sample in report.counted.samples.chosen()],
    )


def _shown(report: Report, sample: Sample) -> dict[str, object]:
    return {
        "line": sample.line,
        "row_id": sample.records[0].row_id if sample.records else "",
        "records": sorted(
            sample.records, key=lambda r: (r.question_index, r.sample_index or 0)
        ),
        "strip": report.strips.get(sample.line, Strip()),
    }


def _headlines(summary: Summary) -> list[tuple[str, str, str]]:
    """Value, name and remark of the large numbers. Pure."""
    seconds = max(summary.seconds, 1e-9)
    told = [
        (
            f"{summary.num_done:,}",
            "questions done",
            f"of {summary.total:,}; {summary.rows:,} rows in this run",
        ),
        (f"{summary.failed + summary.kept_failed:,}", "failed", "error records in the output"),
        (
            duration_told(seconds),
            "time",
            f"{summary.num_new / seconds:,.1f} questions a second",
        ),
        (
            f"{summary.cached_share:.0%}",
            "of prompt tokens from cache",
            f"{summary.cached_tokens:,} of {summary.prompt_tokens:,}",
        ),
        (f"{summary.tokens_computed:,}", "prompt tokens computed", _over_least(summary)),
        (
            f"{summary.completion_tokens:,}",
            "tokens generated",
            f"{summary.completion_tokens / seconds:,.0f} a second",
        ),
        (
            f"{summary.frames:,}",
            "frames and pictures",
            f"{summary.frames / seconds:,.1f} a second; {summary.clips:,} rows about a clip",
        ),
    ]
    if kept := summary.kept_answered + summary.kept_failed:
        told.append(
            (f"{kept:,}", "kept from before", f"{summary.kept_failed:,} of them failed")
        )
    return told


def _over_least(summary: Summary) -> str:
    if not summary.tokens_least:
        return ""
    share = summary.tokens_computed / summary.tokens_least
    return f"{share:.2f} times the least possible, {summary.tokens_least:,}"


def _plots(report: Report) -> list[tuple[str, str, str]]:
    """Title, remark and drawing of each. Pure."""
    counted, seconds = report.counted, report.summary.seconds
    course = counted.course
    if not course.stretches:
        return []
    each = f"a step is {course.length_s:g} s"
    plots = [
        (
            "Prompt tokens from cache",
            f"share of each step's answers; {each}",
            hit_rate_plot(course, seconds),
        ),
        (
            "Questions done a second",
            f"answered and failed; {each}",
            course_plot("Questions a second", course, seconds, lambda s: s.questions),
        ),
        (
            "Tokens generated a second",
            each,
            course_plot("Tokens a second", course, seconds, lambda s: s.completion_tokens),
        ),
    ]
    stages = [(name, sketch) for name, sketch in counted.stages.items() if sketch.count]
    if stages:
        remark = "of the questions that needed it; p50 · p90 · p99, each within 2 %"
        plots.append(("Time of each stage", remark, stage_plot(stages)))
    return plots
