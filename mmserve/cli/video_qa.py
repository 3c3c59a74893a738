"""`mmserve video-qa`: the batch tool."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from mmserve.batch import (
    AskSettings,
    BatchRun,
    BatchSettings,
    OutputMode,
    StoreSettings,
    Summary,
)
from mmserve.cli import console
from mmserve.cli.askers import AskerFlags, check_askers, open_asker
from mmserve.cli.flags import ENGINE, FlagGroup, Settings, with_settings
from mmserve.core import BadRequest

__all__ = ["RunFlags", "summary_line", "video_qa"]


def _flag(default: Any, doc: str, low: int | None = None) -> Any:  # noqa: ANN401
    return field(default=default, metadata={"doc": doc, "low": low})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFlags:
    """How to run the file."""

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
    FlagGroup(AskerFlags, "Who answers"),
    FlagGroup(StoreSettings, "Object stores"),
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
    askers = settings.of(AskerFlags)
    check_askers(askers, config)
    batch = BatchSettings(
        ask=settings.of(AskSettings), mode=flags.mode(), concurrency=flags.concurrency
    )
    with BatchRun(rows, output, batch) as run:
        summary = run.summary()
        if run.num_left or batch.mode is OutputMode.OVERWRITE:
            with (
                open_asker(
                    ctx,
                    askers,
                    config,
                    settings.of(StoreSettings),
                    concurrency=flags.concurrency,
                    is_quiet=quiet,
                ) as client,
                console.bar("questions", is_quiet=quiet) as move,
            ):
                summary = run.answer(client, lambda now: move(now.num_done, now.total))
    if not quiet:
        console.note(summary_line(summary))
    if summary.has_failed_rows:
        raise typer.Exit(3)


def summary_line(summary: Summary) -> str:
    """What a run did, in one line. Pure."""
    line = f"{summary.answered:,} answered, {summary.failed:,} failed"
    kept = summary.kept_answered + summary.kept_failed
    if kept:
        line += f", {kept:,} kept from before ({summary.kept_failed:,} of them failed)"
    line += f"; {summary.seconds:.1f} s"
    if summary.prompt_tokens:
        share = summary.cached_tokens / summary.prompt_tokens
        line += (
            f"; {summary.cached_tokens:,} of {summary.prompt_tokens:,} prompt tokens "
            f"from cache ({share:.0%})"
        )
    return line
