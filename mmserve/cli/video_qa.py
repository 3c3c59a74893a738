"""`mmserve video-qa`: the batch tool."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from mmserve.batch import (
    Asker,
    AskSettings,
    BatchRun,
    BatchSettings,
    Endpoint,
    OutputMode,
    Row,
    RowFault,
    numbered_lines,
    parse_row,
)
from mmserve.batch.forecast import Survey, grouped, make_forecast
from mmserve.cli import console
from mmserve.cli.batch_progress import news_of, watching
from mmserve.cli.batch_report import (
    Reporter,
    ReportFlags,
    check_report,
    renderer_for,
    reporting,
    settings_told,
)
from mmserve.cli.batch_summary import say_summary
from mmserve.cli.dry_run import say_forecast
from mmserve.cli.engines import opener_of
from mmserve.cli.flags import ENGINE, FlagGroup, Settings, with_settings
from mmserve.core import BadRequest, EngineConfig

__all__ = ["RunFlags", "video_qa"]


def _flag(default: Any, doc: str, low: int | None = None) -> Any:  # noqa: ANN401
    return field(default=default, metadata={"doc": doc, "low": low})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFlags:
    """How to run the file."""

    url: str | None = _flag(None, "server to ask, in place of an engine in this process")
    api_key: str | None = _flag(None, "key for that server")
    concurrency: int = _flag(32, "questions under way at once", 1)
    resume: bool = _flag(default=False, doc="go on with the run that OUTPUT is of")
    retry_errors: bool = _flag(default=False, doc="as --resume, and ask failed rows again")
    overwrite: bool = _flag(default=False, doc="drop what OUTPUT holds")

    def mode(self) -> OutputMode:
        """What to do with OUTPUT's records. Pure. Raises BadRequest."""
        if self.overwrite and (self.resume or self.retry_errors):
            message = "--overwrite and --resume are both given"
            raise BadRequest(message, field="overwrite", reason="several", hint="give one")
        if self.overwrite:
            return OutputMode.OVERWRITE
        if self.retry_errors:
            return OutputMode.RETRY_ERRORS
        return OutputMode.RESUME if self.resume else OutputMode.NEW


FLAGS = (
    FlagGroup(RunFlags, "Run"),
    FlagGroup(ReportFlags, "Before and after"),
    FlagGroup(AskSettings, "Rows that are silent"),
    *ENGINE,
)


@with_settings(FLAGS)
def video_qa(
    ctx: typer.Context,
    rows: Annotated[
        Path,
        typer.Argument(
            help="rows, one JSON object a line", exists=True, dir_okay=False, readable=True
        ),
    ],
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="records, one JSON object a line")
    ],
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="no progress bar, no summary")
    ] = False,
    settings: Settings,
) -> None:
    """Answer every question of a file of rows about clips and pictures.

    A row has video or images, question or questions, and may have id, num_frames, fps, start_s,
    end_s, max_tokens and one of regex, choices, json_schema, ebnf. Each question gives one
    record: id, line, question_index, question, answer, frames_used, timestamps_s, usage,
    timing_ms, error. Either answer or error is null. A note is added where frames were damaged
    or the answer was cut short.

    Records are written one by one, in the order of the rows and their questions; only what
    --retry-errors asks again comes after the rest. A row that fails does not end the run. A
    run that was killed is taken up again with --resume: a half-written last line is cut off,
    questions that have a record are not asked again, and an output of other questions is
    refused. OUTPUT is locked while a run writes it.
    """
    flags, config = settings.of(RunFlags), settings.engine()
    if flags.url is not None and config != EngineConfig():
        message = "--url is given, and flags of an engine"
        raise BadRequest(message, field="url", reason="several", hint="give them to the server")
    shown = settings.of(ReportFlags)
    if shown.dry_run:
        _dry_run(ctx, rows, settings)
        return
    check_report(shown.report, rows, output)
    batch = BatchSettings(
        ask=settings.of(AskSettings), mode=flags.mode(), concurrency=flags.concurrency
    )
    reporter = _reporter(rows, output, settings, is_quiet=quiet)
    with BatchRun(rows, output, batch) as run, reporting(reporter, run.tally) as draw:
        if run.num_left or batch.mode is OutputMode.OVERWRITE:
            with _open_asker(ctx, flags, config) as client:
                with watching(is_quiet=quiet, servers=news_of(client)) as move:
                    run.answer(client, move)
                with renderer_for(client, flags.url, flags.api_key) as renderer:
                    draw(renderer)
        summary = run.summary()
    if not quiet:
        say_summary(summary)
    if summary.has_failed_rows:
        raise typer.Exit(3)


def _rows(path: Path) -> Iterator[Row | RowFault]:
    return (parse_row(line, content) for line, content in numbered_lines(path))


def _reporter(rows: Path, output: Path, settings: Settings, *, is_quiet: bool) -> Reporter:
    told = settings_told(settings, (RunFlags, AskSettings))
    return Reporter(
        place=settings.of(ReportFlags).report,
        title=rows.name,
        settings=(("rows", str(rows)), ("output", str(output)), *told),
        rows=lambda: _rows(rows),
        ask=settings.of(AskSettings),
        is_quiet=is_quiet,
    )


def _dry_run(ctx: typer.Context, rows: Path, settings: Settings) -> None:
    """Tell what the run would do. Neither opens nor makes an output."""
    flags, shown = settings.of(RunFlags), settings.of(ReportFlags)
    survey = Survey(shown.dry_run_groups)
    survey.read(*grouped(_rows(rows)))
    with (
        _open_asker(ctx, flags, settings.engine()) as client,
        renderer_for(client, flags.url, flags.api_key) as renderer,
        console.waiting("looking at prompts"),
    ):
        ask = settings.of(AskSettings)
        forecast = make_forecast(survey, client, renderer, ask, flags.concurrency)
    if shown.as_json:
        console.say_json(forecast.fields())
    else:
        say_forecast(forecast)


def _open_asker(
    ctx: typer.Context, flags: RunFlags, config: EngineConfig
) -> AbstractContextManager[Asker]:
    if flags.url is None:
        return opener_of(ctx)(config)
    return Endpoint(flags.url, flags.api_key, concurrency=flags.concurrency)
