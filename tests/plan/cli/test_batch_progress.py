"""How a batch run is shown while it works and at its end."""

import io

from rich.console import Console

from mmserve.batch import Summary
from mmserve.cli.batch_progress import Display, Pace, progress_line, watching
from mmserve.cli.batch_summary import say_summary, summary_rows

NOW = Summary(
    total=4000,
    answered=1200,
    failed=4,
    rows=301,
    frames=2408,
    clips=300,
    prompt_tokens=500_000,
    cached_tokens=400_000,
    completion_tokens=9000,
    seconds=60.0,
)


def terminal(*, is_terminal: bool = True) -> Console:
    """A console of 90 columns."""
    return Console(
        file=io.StringIO(),
        force_terminal=is_terminal,
        width=90,
        highlight=False,
        color_system=None,
    )


def shown(console: Console) -> str:
    """What was printed."""
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_display_says_how_far_the_run_is() -> None:
    """Questions, share, time left, rows, failures, tokens and the cache's share."""
    display, console = Display(), terminal()
    display.move(NOW)
    console.print(display)
    text = shown(console)
    for told in ("1,204 of 4,000 questions", "30%", "2:19 left", "301 rows", "4 failed"):
        assert told in text
    assert "500,000 prompt tokens, 80% from cache" in text


def test_servers_are_shown_if_there_are_several() -> None:
    """Each with its count; text that looks like markup stays text; one server is not shown."""
    news = [("http://[red]a[/red]:1", "3 answered"), ("http://b:2", "4 answered")]
    for known, is_shown in ((news, True), (news[:1], False)):
        display, console = Display(lambda known=known: known), terminal()
        console.print(display)
        assert ("http://[red]a[/red]:1" in shown(console)) == is_shown


def test_the_pace_is_that_of_the_last_half_minute() -> None:
    """A slow beginning is forgotten after half a minute."""
    pace = Pace()
    for second in range(200):
        done = second if second < 100 else 100 + (second - 100) * 10
        now = Summary(total=9999, answered=done, seconds=float(second))
        pace.mark(now)
    assert round(pace.rate(lambda s: s.answered, now)) == 10


def test_many_records_in_a_second_are_few_marks() -> None:
    """A pace is known though news come every millisecond."""
    pace = Pace()
    for number in range(3000):
        now = Summary(total=9999, answered=number, seconds=number / 1000)
        pace.mark(now)
    assert round(pace.rate(lambda s: s.answered, now)) == 1000
    assert len(pace._marks) < 40


def test_without_a_terminal_there_is_a_line_at_times() -> None:
    """None in the first ten seconds, then one at times, without marks of a terminal."""
    console = terminal(is_terminal=False)
    with watching(to=console) as move:
        for second in range(100):
            move(Summary(total=1000, answered=second, seconds=float(second)))
    lines = shown(console).splitlines()
    assert 5 <= len(lines) <= 9
    assert lines[0].startswith("10 of 1,000 questions, 0 rows, 0 failed; ")


def test_quiet_shows_nothing() -> None:
    """Neither on a terminal nor without."""
    for is_terminal in (True, False):
        console = terminal(is_terminal=is_terminal)
        with watching(is_quiet=True, to=console) as move:
            move(Summary(total=9, answered=1, seconds=99.0))
        assert shown(console) == ""


def test_a_line_of_progress_says_what_the_display_says() -> None:
    """In one line."""
    line = progress_line(NOW, Pace())
    assert "\n" not in line
    assert "1,204 of 4,000 questions, 301 rows, 4 failed" in line


def test_the_table_at_the_end() -> None:
    """On a terminal the sums are a table, with rates and the bound if it is known."""
    console = terminal()
    say_summary(NOW, console)
    assert "questions of 301 rows, 300 about a clip" in shown(console)
    rows = {name: (value, more) for name, value, more in summary_rows(NOW)}
    assert rows["of them computed"] == ("100,000", "")
    assert rows["not asked"] == ("2,796", "--resume goes on")
