"""All printing of the command line: results to stdout, everything else to stderr.

Colours and moving lines appear on a terminal only; text is never read as markup.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from mmserve.core import MmserveError

__all__ = [
    "Column",
    "bar",
    "errors",
    "fail",
    "note",
    "say",
    "say_json",
    "say_piece",
    "say_table",
    "waiting",
]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; text may be folded, numbers stand to the right."""

    title: str
    is_number: bool = False


def say(text: str = "") -> None:
    """One line of result."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def say_piece(text: str) -> None:
    """A piece of a result that goes on."""
    sys.stdout.write(text)
    sys.stdout.flush()


def say_json(value: object) -> None:
    """A result for machines: one JSON object."""
    say(json.dumps(value, indent=2, ensure_ascii=False))


def say_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """A result as a table that fits the terminal, 80 columns if there is none."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    for column in columns:
        table.add_column(
            column.title,
            justify="right" if column.is_number else "left",
            no_wrap=column.is_number,
        )
    for row in rows:
        table.add_row(*map(Text, row))
    Console(file=sys.stdout, highlight=False).print(table)


def note(text: str) -> None:
    """One line about the work, not part of the result."""
    errors().print(Text(text, style="dim"))


def fail(error: MmserveError | OSError) -> None:
    """What went wrong, and the way out if one is known."""
    console = errors()
    message = error.message if isinstance(error, MmserveError) else _system_message(error)
    console.print(Text.assemble(("error: ", "bold red"), message))
    if isinstance(error, MmserveError) and error.hint:
        console.print(Text.assemble(("hint: ", "bold"), error.hint))


def _system_message(error: OSError) -> str:
    reason = (error.strerror or str(error)).lower()
    return f"{error.filename}: {reason}" if error.filename is not None else reason


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """A sign of life while the block runs; nothing if stderr is no terminal."""
    console = errors()
    if not console.is_terminal:
        yield
        return
    with console.status(Text(text)):
        yield


@contextmanager
def bar(title: str, *, is_quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A progress bar while the block runs; gives `move(done, total)`.

    Nothing is drawn if stderr is no terminal or `is_quiet`.
    """
    console = errors()
    progress = Progress(
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=is_quiet or not console.is_terminal,
    )
    with progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def errors() -> Console:
    """Where everything that is no result goes: stderr, without markup of its own."""
    return Console(file=sys.stderr, highlight=False, soft_wrap=True)
