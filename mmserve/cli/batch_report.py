"""`mmserve video-qa --report FILE.html`: flags, and the file at the end of whatever end."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from mmserve.batch import AskSettings, Row, RowFault, Tally, progress_path
from mmserve.batch.looking import Renderer
from mmserve.batch.report import (
    Report,
    Strip,
    check_place,
    draw_strips,
    find_rows,
    write_report,
)
from mmserve.cli import console
from mmserve.cli.flags import Settings
from mmserve.core import MmserveError

__all__ = ["ReportFlags", "Reporter", "reporting", "settings_told"]

_SECRET = re.compile(r"key|token$|secret|password|salt")
_USER = re.compile(r"(?<=://)[^/@\s]*@")


def _flag(default: Any, doc: str, **more: object) -> Any:  # noqa: ANN401
    return field(default=default, metadata={"doc": doc, **more})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFlags:
    """What to tell before or after a run."""

    report: Path | None = field(
        default=None, metadata={"doc": "write a report of the run to this HTML file"}
    )
    dry_run: bool = _flag(default=False, doc="tell what the run would do, and write nothing")
    dry_run_groups: int = _flag(50, "clips or sets of pictures that a dry run looks at", low=1)
    as_json: bool = _flag(
        default=False, doc="with --dry-run: as one JSON object", flag="--json"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporter:
    """What a report needs besides the counts.

    Args:
        place: of the file; None for no report.
        title: of the run.
        settings: name and value of each.
        rows: reads the input's rows again.
        ask: what holds for silent rows.
        is_quiet: whether to keep silent about where the report is.
    """

    place: Path | None
    title: str
    settings: tuple[tuple[str, str], ...]
    rows: Callable[[], Iterator[Row | RowFault]]
    ask: AskSettings
    is_quiet: bool = False


@contextmanager
def reporting(
    reporter: Reporter, tally: Callable[[], Tally]
) -> Iterator[Callable[[Renderer | None], None]]:
    """Write the report after the block, also if it fails; gives `draw(renderer)`.

    `draw` makes the samples' pictures, if somebody shows prompts; call it when all is answered.
    """
    strips: dict[int, Strip] = {}
    if reporter.place is None:
        yield lambda _: None
        return

    def draw(renderer: Renderer | None) -> None:
        if renderer is None:
            return
        lines = [sample.line for sample in tally().counted.samples.chosen()]
        if lines:
            # A run is done though its rows cannot be read a second time.
            with console.waiting("drawing the report"), contextlib.suppress(OSError):
                rows = find_rows(reporter.rows(), lines)
                strips.update(draw_strips(renderer, rows, reporter.ask))

    try:
        yield draw
    except BaseException as error:
        try:
            _write(reporter, tally(), strips, _reason(error))
        except OSError as other:  # why the run ended matters more
            console.fail(other)
        raise
    _write(reporter, tally(), strips, None)


def _write(
    reporter: Reporter, tally: Tally, strips: Mapping[int, Strip], ended: str | None
) -> None:
    assert reporter.place is not None  # noqa: S101
    lack = "no prompt could be looked at again" if ended is None else "the run did not finish"
    report = Report(
        title=reporter.title,
        summary=tally.summary(),
        counted=tally.counted,
        settings=reporter.settings,
        ended=ended,
        strips=strips,
        no_pictures=None if strips else f"There are no pictures, as {lack}.",
        written=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
    )
    write_report(report, reporter.place)
    if not reporter.is_quiet:
        console.note(f"report: {reporter.place}")


def _reason(error: BaseException) -> str:
    if isinstance(error, MmserveError):
        return error.message
    return "it was interrupted" if isinstance(error, KeyboardInterrupt) else repr(error)


def settings_told(settings: Settings, always: tuple[type[Any], ...]) -> list[tuple[str, str]]:
    """Settings by name: all of the kinds in `always`, of others what is no default. No keys."""
    told = []
    for kind, values in settings.values.items():
        defaults = {spec.name: spec.default for spec in fields(kind)}
        for name, value in values.items():
            plain = tuple(value) if isinstance(value, list) else value
            is_told = kind in always or plain != defaults.get(name)
            if is_told and value is not None and not _SECRET.search(name):
                told.append((name.replace("_", " "), _shown(plain)))
    return told


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(_shown, value))
    return _USER.sub("", str(value))


def check_report(place: Path | None, rows: Path, output: Path) -> None:
    """Raises BadRequest before the run if its report could not be written."""
    if place is not None:
        check_place(place, (rows, output, progress_path(output)))
