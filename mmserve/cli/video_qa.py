"""`mmserve video-qa`: the batch tool."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from mmserve.batch import (
    AskSettings,
    BatchRun,
    BatchSettings,
    Elsewhere,
    OutputMode,
    Rows,
    StoreSettings,
)
from mmserve.batch.forecast import Survey, make_forecast, planned
from mmserve.batch.ray import RaySettings
from mmserve.cli import console
from mmserve.cli.askers import AskerFlags, Opened, check_askers, open_asker, open_cluster
from mmserve.cli.batch_progress import watching
from mmserve.cli.batch_report import (
    Reporter,
    ReportFlags,
    check_report,
    reporting,
    settings_told,
)
from mmserve.cli.batch_summary import say_summary
from mmserve.cli.dry_run import say_forecast
from mmserve.cli.flags import ENGINE, FlagGroup, Settings, with_settings
from mmserve.cli.row_flags import RowFlags
from mmserve.core import BadRequest

__all__ = ["RunFlags", "video_qa"]


def _flag(default: Any, doc: str, low: int | None = None) -> Any:  # noqa: ANN401
    return field(default=default, metadata={"doc": doc, "low": low})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFlags:
    """How to run the file."""

    concurrency: int = _flag(32, "questions under way at once", 1)
    resume: bool = _flag(default=False, doc="go on with the run that OUTPUT is of")
    retry_errors: bool = _flag(default=False, doc="as --resume, and ask failed rows again")
    overwrite: bool = _flag(default=False, doc="drop what OUTPUT holds")
    open_clips: int = _flag(4, "clips and pictures made ready ahead of their questions", 0)
    fail_fast: bool = _flag(default=False, doc="stop at the first question that fails")
    max_errors: int | None = _flag(None, "stop when more questions than this have failed", 0)

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

    def errors_allowed(self) -> int | None:
        """How many questions may fail; None for any number. Pure. Raises BadRequest."""
        if self.fail_fast and self.max_errors is not None:
            message = "--fail-fast and --max-errors are both given"
            raise BadRequest(message, field="fail_fast", reason="several", hint="give one")
        return 0 if self.fail_fast else self.max_errors


FLAGS = (
    FlagGroup(RunFlags, "Run"),
    FlagGroup(ReportFlags, "Before and after"),
    FlagGroup(RowFlags, "Rows"),
    FlagGroup(AskSettings, "Rows that are silent"),
    FlagGroup(AskerFlags, "Who answers"),
    FlagGroup(RaySettings, "Ray cluster"),
    FlagGroup(StoreSettings, "Object stores"),
    *ENGINE,
)


@with_settings(FLAGS)
def video_qa(
    ctx: typer.Context,
    rows: Annotated[
        Path,
        typer.Argument(
            help="rows: JSON lines, CSV or Parquet", exists=True, dir_okay=False, readable=True
        ),
    ],
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="records: JSON lines, CSV or Parquet")
    ],
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="no progress, no summary")
    ] = False,
    settings: Settings,
) -> None:
    """Answer every question of a file of rows about clips and pictures.

    A row has video or images; question, questions or turns; and may have id, system,
    num_frames, fps, start_s, end_s, times_s, key_frames, max_tokens, n, temperature, top_p,
    top_k, seed and one of regex, choices, json_schema, ebnf. --template makes the question of
    these and of other fields. Each question gives one record: id, line, question_index,
    question, answer, frames_used, timestamps_s, usage, timing_ms, error. Either answer or error
    is null. A note is added where frames were damaged or the answer was cut short.

    Rows about the same clip or pictures are answered one after the other, wherever they stand
    in ROWS. Records are written as they are done; when all are, OUTPUT is put into the order of
    the rows and their questions. A row that fails does not end the run, unless --fail-fast or
    --max-errors says so; a failure that may pass is tried again after a while. OUTPUT.progress
    keeps account: a run that was stopped or killed is taken up again with --resume, nothing
    that has a record is asked again, and an output of other questions or other settings is
    refused. OUTPUT is locked while a run writes it.
    """
    check_askers(settings.of(AskerFlags), settings.engine(), settings.of(RaySettings))
    shown = settings.of(ReportFlags)
    batch = _batch_settings(settings)
    source = Rows(rows, batch.rows, batch.ask)
    if shown.as_json and not shown.dry_run:
        message = "--json is given, and not --dry-run"
        hint = "records are JSON already; --json is for what a dry run tells"
        raise BadRequest(message, field="as_json", reason="unused", hint=hint)
    if shown.dry_run:
        _dry_run(ctx, source, settings, batch)
        return
    check_report(shown.report, rows, output)
    reporter = _reporter(source, rows, output, settings, is_quiet=quiet)
    with BatchRun(rows, output, batch) as run, reporting(reporter, run.tally) as draw:
        if run.num_left:
            with _open(ctx, settings, batch, is_quiet=quiet) as opened:
                with watching(is_quiet=quiet, servers=opened.servers) as move:
                    run.answer(opened.asker, move)
                draw(opened.renderer)
        else:
            run.settle()
        summary = run.summary()
    if not quiet:
        say_summary(summary)
    if summary.has_failed_rows:
        raise typer.Exit(3)


def _batch_settings(settings: Settings) -> BatchSettings:
    flags = settings.of(RunFlags)
    has_servers = bool(settings.of(AskerFlags).url)
    return BatchSettings(
        ask=settings.of(AskSettings),
        rows=settings.of(RowFlags).settings(),
        mode=flags.mode(),
        concurrency=flags.concurrency,
        open_clips=flags.open_clips,
        max_errors=flags.errors_allowed(),
        fixed={} if has_servers else {"model": settings.engine().model},
    )


def _open(
    ctx: typer.Context, settings: Settings, batch: BatchSettings, *, is_quiet: bool
) -> AbstractContextManager[Opened]:
    config, stores = settings.engine(), settings.of(StoreSettings)
    cluster = settings.of(RaySettings)
    if cluster.ray:
        return open_cluster(config, stores, batch, cluster)
    return open_asker(
        ctx,
        settings.of(AskerFlags),
        config,
        stores,
        concurrency=batch.concurrency,
        is_quiet=is_quiet,
    )


def _reporter(
    source: Rows, rows: Path, output: Path, settings: Settings, *, is_quiet: bool
) -> Reporter:
    told = settings_told(settings, (RunFlags, AskSettings))
    return Reporter(
        place=settings.of(ReportFlags).report,
        title=rows.name,
        settings=(("rows", str(rows)), ("output", str(output)), *told),
        rows=lambda: map(source.parse, source),
        ask=settings.of(AskSettings),
        is_quiet=is_quiet,
    )


def _dry_run(
    ctx: typer.Context, source: Rows, settings: Settings, batch: BatchSettings
) -> None:
    """Tell what the run would do. Neither opens nor makes an output."""
    shown = settings.of(ReportFlags)
    survey = Survey(shown.dry_run_groups)
    with _open(ctx, settings, batch, is_quiet=True) as opened:
        if isinstance(opened.asker, Elsewhere) or opened.renderer is None:
            message = "--dry-run and --ray are both given"
            hint = "leave --ray out: the plan is the same, the time is that of one engine"
            raise BadRequest(message, field="dry_run", reason="several", hint=hint)
        with planned(source, batch.ask) as (plan, faults):
            survey.read(plan, faults)
        with console.waiting("looking at prompts"):
            forecast = make_forecast(
                survey, opened.asker, opened.renderer, batch.ask, batch.concurrency
            )
    if shown.as_json:
        console.say_json(forecast.fields())
    else:
        say_forecast(forecast)
