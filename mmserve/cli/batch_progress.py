"""How a batch run goes, for who waits: a few moving lines on a terminal, else a line at times.

1,204 of 4,000 questions  ━━━━━━━━━╺━━━━━━━━━━━━━━━━━━━━  30%   1:12 left
301 rows, 2 failed   12.4 questions/s   38.1 frames/s
512,201 prompt tokens, 81% from cache   410 generated/s
http://10.0.0.7:30000    604 done, 12 under way
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mmserve.batch import ServerCount, Summary
from mmserve.cli import console

__all__ = ["Display", "Pace", "news_of", "progress_line", "watching"]


ServerNews = Callable[[], Sequence[tuple[str, str]]]
"""For each server its address and what it did."""
_WINDOW_S = 30.0
_MAX_MARKS = 200
_FIRST_LINE_S = 10.0
_MAX_LINE_S = 60.0


class Pace:
    """How fast a run goes, over the last half minute. Mutable: marks of the run."""

    def __init__(self) -> None:
        self._marks: deque[Summary] = deque(maxlen=_MAX_MARKS)

    def mark(self, now: Summary) -> None:
        """Remember how far the run is. Changes: the pace."""
        if self._marks and now.seconds - self._marks[-1].seconds < _WINDOW_S / _MAX_MARKS:
            return
        self._marks.append(now)
        while len(self._marks) > 2 and now.seconds - self._marks[1].seconds > _WINDOW_S:
            self._marks.popleft()

    def rate(self, of: Callable[[Summary], int], now: Summary) -> float:
        """So much a second lately; 0 if nothing is known. Pure."""
        first = self._marks[0] if self._marks else now
        passed_s = now.seconds - first.seconds
        return (of(now) - of(first)) / passed_s if passed_s > 0 else 0.0

    def left_s(self, now: Summary) -> float | None:
        """Seconds until the end at the pace of the whole run; None if nothing is done. Pure."""
        if not now.num_new:
            return None
        return (now.total - now.num_done) * now.seconds / now.num_new


class Display:
    """What is drawn on a terminal. Mutable: the last news."""

    def __init__(self, servers: ServerNews | None = None) -> None:
        self._now = Summary(total=0)
        self._pace = Pace()
        self._servers = servers

    def move(self, now: Summary) -> None:
        """Take news. Changes: what is drawn."""
        self._now = now
        self._pace.mark(now)

    def __rich__(self) -> RenderableType:
        now = self._now
        head = Table.grid(padding=(0, 2))
        share = now.num_done / now.total if now.total else 0.0
        bar = ProgressBar(total=max(1, now.total), completed=now.num_done, width=30)
        head.add_row(
            Text(f"{now.num_done:,} of {now.total:,} questions", style="bold"),
            bar,
            Text(f"{share:.0%}"),
            Text(_left(self._pace.left_s(now)), style="cyan"),
        )
        lines: list[RenderableType] = [head, self._work(), self._tokens()]
        news = self._servers() if self._servers is not None else ()
        if len(news) > 1:
            table = Table.grid(padding=(0, 2))
            for address, text in news:
                table.add_row(Text(address, style="dim"), Text(text))
            lines.append(table)
        return Group(*lines)

    def _work(self) -> Text:
        now, pace = self._now, self._pace
        failed = (f"{now.failed:,} failed", "red" if now.failed else "dim")
        return Text.assemble(
            (f"{now.rows:,} rows, ", "dim"),
            failed,
            (f"   {pace.rate(lambda s: s.num_new, now):,.1f} questions/s", "dim"),
            (f"   {pace.rate(lambda s: s.frames, now):,.1f} frames/s", "dim"),
            overflow="ellipsis",
            no_wrap=True,
        )

    def _tokens(self) -> Text:
        now = self._now
        generated = self._pace.rate(lambda s: s.completion_tokens, now)
        return Text.assemble(
            (f"{now.prompt_tokens:,} prompt tokens, ", "dim"),
            (f"{now.cached_share:.0%} from cache", "green"),
            (f"   {generated:,.0f} generated/s", "dim"),
            overflow="ellipsis",
            no_wrap=True,
        )


def news_of(asker: object) -> ServerNews | None:
    """What each server did, of an asker that has several; None of another. Pure."""
    counts: Callable[[], Sequence[ServerCount]] | None = getattr(asker, "counts", None)
    if counts is None:
        return None
    return lambda: [(count.url, _server_told(count)) for count in counts()]


def _server_told(count: ServerCount) -> str:
    told = f"{count.answered:,} answered, {count.under_way:,} under way"
    if count.refused:
        told += f", {count.refused:,} refused"
    return told if count.is_up else f"{told}, not asked now"


def progress_line(now: Summary, pace: Pace) -> str:
    """How far a run is, in one line. Pure."""
    generated = pace.rate(lambda s: s.completion_tokens, now)
    return (
        f"{now.num_done:,} of {now.total:,} questions, {now.rows:,} rows, "
        f"{now.failed:,} failed; {now.prompt_tokens:,} prompt tokens, "
        f"{now.cached_share:.0%} from cache, {generated:,.0f} generated/s; "
        f"{pace.rate(lambda s: s.frames, now):,.1f} frames/s; {_left(pace.left_s(now))}"
    )


@contextmanager
def watching(
    *, is_quiet: bool = False, servers: ServerNews | None = None, to: Console | None = None
) -> Iterator[Callable[[Summary], None]]:
    """Show how the run in the block goes; gives what takes its news.

    On a terminal lines that move and are gone at the end; else a line after ten seconds, and
    then at times, at most one in a minute of a long run. Nothing if `is_quiet`.
    """
    errors = to or console.errors()
    if is_quiet:
        yield lambda _: None
        return
    if not errors.is_terminal:
        yield _Lines(errors).move
        return
    display = Display(servers)
    with Live(
        display,
        console=errors,
        transient=True,
        refresh_per_second=4,
        redirect_stdout=False,
        redirect_stderr=True,
    ):
        yield display.move


class _Lines:
    """Plain lines for a log. Mutable: when the next one is due."""

    def __init__(self, errors: Console) -> None:
        self._errors = errors
        self._pace = Pace()
        self._due_s = _FIRST_LINE_S

    def move(self, now: Summary) -> None:
        self._pace.mark(now)
        if now.seconds >= self._due_s and now.num_done < now.total:
            self._due_s = now.seconds + min(max(_FIRST_LINE_S, now.seconds / 10), _MAX_LINE_S)
            self._errors.print(Text(progress_line(now, self._pace)), soft_wrap=True)


def _left(seconds: float | None) -> str:
    if seconds is None:
        return "time left unknown"
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    clock = f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
    return f"{clock} left"
