"""What a batch run did, at its end: one line for a log, a table on a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mmserve.batch import Summary, duration_told
from mmserve.cli import console

__all__ = ["say_summary", "summary_line", "summary_rows"]


def say_summary(summary: Summary, to: Console | None = None) -> None:
    """Tell what a run did, on stderr."""
    errors = to or console.errors()
    if not errors.is_terminal:
        console.note(summary_line(summary))
        return
    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for name, value, more in summary_rows(summary):
        is_bad = name == "failed" and value != "0"
        table.add_row(Text(name), Text(value, style="red" if is_bad else "bold"), Text(more))
    errors.print(table)


def summary_rows(summary: Summary) -> list[tuple[str, str, str]]:
    """Name, value and remark of each line of the table. Pure."""
    seconds = max(summary.seconds, 1e-9)
    kept = summary.kept_answered + summary.kept_failed
    rows = [
        ("answered", f"{summary.answered:,}", _of_rows(summary)),
        ("failed", f"{summary.failed:,}", "see error of their records" * bool(summary.failed)),
    ]
    if kept:
        rows.append(("kept", f"{kept:,}", f"{summary.kept_failed:,} of them failed"))
    if left := summary.total - summary.num_done:
        rows.append(("not asked", f"{left:,}", "--resume goes on"))
    rows.append(
        ("time", duration_told(seconds), f"{summary.num_new / seconds:,.1f} questions/s")
    )
    if summary.frames:
        told = f"{summary.frames / seconds:,.1f} frames/s"
        rows.append(("frames and pictures", f"{summary.frames:,}", told))
    if summary.prompt_tokens:
        rows += _token_rows(summary)
    return rows


def _token_rows(summary: Summary) -> list[tuple[str, str, str]]:
    seconds = max(summary.seconds, 1e-9)
    least = summary.tokens_least
    over = f"{summary.tokens_computed / least:.2f} of the least possible" if least else ""
    return [
        (
            "prompt tokens",
            f"{summary.prompt_tokens:,}",
            f"{summary.cached_share:.0%} from cache",
        ),
        ("of them computed", f"{summary.tokens_computed:,}", over),
        (
            "generated",
            f"{summary.completion_tokens:,}",
            f"{summary.completion_tokens / seconds:,.1f} tokens/s",
        ),
    ]


def _of_rows(summary: Summary) -> str:
    clips = f", {summary.clips:,} about a clip" if summary.clips else ""
    return f"questions of {summary.rows:,} rows{clips}"


def summary_line(summary: Summary) -> str:
    """What a run did, in one line. Pure."""
    line = f"{summary.answered:,} answered, {summary.failed:,} failed"
    kept = summary.kept_answered + summary.kept_failed
    if kept:
        line += f", {kept:,} kept from before ({summary.kept_failed:,} of them failed)"
    line += f"; {summary.seconds:.1f} s"
    if summary.prompt_tokens:
        line += (
            f"; {summary.cached_tokens:,} of {summary.prompt_tokens:,} prompt tokens "
            f"from cache ({summary.cached_share:.0%})"
        )
    if summary.tokens_least:
        computed, least = summary.tokens_computed, summary.tokens_least
        line += f"; {computed:,} computed, the least possible is {least:,}"
    return line
