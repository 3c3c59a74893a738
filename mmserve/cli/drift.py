"""`mmserve drift`: the same prompts on two sides."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from mmserve.batch import RowFault
from mmserve.batch.drift import (
    Ask,
    Pair,
    Report,
    Said,
    TaskDrift,
    ask_all,
    draw_report,
    pair_up,
    read_asks,
    report_json,
)
from mmserve.cli import console
from mmserve.cli.engines import opener_of
from mmserve.cli.flags import FlagGroup, Settings, with_settings
from mmserve.cli.sides import SideSpec, open_side, read_side

__all__ = ["DriftFlags", "drift", "exit_code"]

_FAILED, _FLIPPED = 3, 4
_MAX_SHOWN = 5
_MAX_LETTERS = 60


def _flag(default: Any, doc: str, low: float | None = None) -> Any:  # noqa: ANN401
    return field(default=default, metadata={"doc": doc, "low": low})


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftFlags:
    """How to ask, and what to do with what is found."""

    most: float = _flag(
        0.0, "largest share of flipped answers, of any task, that is no failure", 0
    )
    concurrency: int = _flag(8, "prompts under way at once on a side", 1)
    max_tokens: int = _flag(128, "most tokens of an answer, for rows that are silent", 1)
    json: str | None = _flag(None, "file for the whole report, - for standard output")
    plot: str | None = _flag(None, "file for a picture of it, SVG")


FLAGS = (FlagGroup(DriftFlags, "Run"),)


@with_settings(FLAGS)
def drift(
    ctx: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            help="prompts, one JSON object a line", exists=True, dir_okay=False, readable=True
        ),
    ],
    *,
    a: Annotated[str, typer.Option(help="address of an endpoint, or settings to open here")],
    b: Annotated[str, typer.Option(help="what A is compared with, in the same words")],
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress bar")] = False,
    settings: Settings,
) -> None:
    """Ask the same prompts on two sides and tell where the answers part.

    A side is the address of any OpenAI-compatible endpoint, or settings of an engine that is
    opened here: model=tabletop,chunk_tokens=64,radix_cache=off. Either may add temperature,
    seed and system (a system message); url=ADDRESS takes api_key and model too. Both are asked
    greedily, one side after the other, with log-probabilities where the endpoint tells them.

    A row has prompt or messages, and may have task, id, images or video (with num_frames, fps,
    start_s, end_s, times_s, key_frames), max_tokens and one of regex, choices, json_schema,
    ebnf. An answer is flipped if its words differ. A prompt that a side does not answer is an
    error, never a flip.

    The exit code is 0 if no task has more flipped answers than --most, 4 if one has, and 3 if
    none has, but some prompts were not answered.
    """
    flags = settings.of(DriftFlags)
    specs = [read_side(f"--{n}", words, flags.max_tokens) for n, words in (("a", a), ("b", b))]
    asks = read_asks(file)
    mine, other = (
        _answers(ctx, name, spec, asks, flags, is_quiet=quiet)
        for name, spec in zip("AB", specs, strict=True)
    )
    report = Report(a=specs[0].label, b=specs[1].label, pairs=pair_up(asks, mine, other))
    _tell(report, flags)
    code = exit_code(report, flags.most)
    if code:
        raise typer.Exit(code)


def _answers(
    ctx: typer.Context,
    name: str,
    spec: SideSpec,
    asks: Sequence[Ask | RowFault],
    flags: DriftFlags,
    *,
    is_quiet: bool,
) -> list[Said]:
    with (
        open_side(spec, opener_of(ctx)) as side,
        console.bar(f"side {name}", is_quiet=is_quiet) as move,
    ):
        return ask_all(side, asks, concurrency=flags.concurrency, on_progress=move)


def exit_code(report: Report, most: float) -> int:
    """How the command ends after such a report. Pure."""
    if report.worst_share > most:
        return _FLIPPED
    return _FAILED if report.total.failed else 0


def _tell(report: Report, flags: DriftFlags) -> None:
    if flags.plot is not None:
        Path(flags.plot).write_text(draw_report(report), encoding="utf-8")
    if flags.json == "-":
        console.say_json(report_json(report))
        return
    if flags.json is not None:
        text = json.dumps(report_json(report), indent=2, ensure_ascii=False)
        Path(flags.json).write_bytes(text.encode("utf-8", "backslashreplace") + b"\n")
    _say_tables(report)
    failed = [pair for pair in report.pairs if pair.result == "failed"]
    for pair in failed[:_MAX_SHOWN]:
        for name, said in (("A", pair.a), ("B", pair.b)):
            if said.error is not None:
                console.note(f"line {pair.line}, {name}: {said.error[1]}")
    if len(failed) > _MAX_SHOWN:
        console.note(f"and {len(failed) - _MAX_SHOWN:,} more prompts without two answers")


def _say_tables(report: Report) -> None:
    console.say(f"A: {report.a}")
    console.say(f"B: {report.b}")
    columns = [
        console.Column("task"),
        *(
            console.Column(title, is_number=True)
            for title in ("compared", "flipped", "share", "failed", "first", "gap", "off by")
        ),
    ]
    tasks = report.tasks
    rows = [_cells(task) for task in (*tasks, *([report.total] if len(tasks) > 1 else []))]
    console.say_table(columns, rows)
    flipped = [pair for pair in report.pairs if pair.difference is not None]
    if flipped:
        titles = ("line", "place", "A says", "B says", "gap")
        console.say_table(
            [
                console.Column(title, is_number=title in ("line", "place", "gap"))
                for title in titles
            ],
            [_flip_cells(pair) for pair in flipped[:_MAX_SHOWN]],
        )
    if len(flipped) > _MAX_SHOWN:
        console.note(f"and {len(flipped) - _MAX_SHOWN:,} more flipped answers; see --json")


def _cells(task: TaskDrift) -> list[str]:
    return [
        task.task,
        f"{task.compared:,}",
        f"{task.flipped:,}",
        f"{task.flipped_share:.1%}",
        f"{task.failed:,}",
        "" if task.median_place is None else f"{task.median_place:g}",
        _number(task.median_gap),
        _number(task.logprob_off),
    ]


def _flip_cells(pair: Pair) -> list[str]:
    found = pair.difference
    assert found is not None  # noqa: S101 - only flipped pairs are shown
    ends = [
        "the end" if word is None else repr(word)[:_MAX_LETTERS] for word in (found.a, found.b)
    ]
    place = f"{found.unit} {found.place}"
    return [str(pair.line), place, *ends, _number(found.gap)]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
