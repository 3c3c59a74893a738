"""Where two answers part, and what is counted of it."""

from __future__ import annotations

import pytest

from mmserve.batch.drift import Report, Said, Token, compare, report_json


def told(*tokens: tuple[str, float], **top: float) -> Said:
    """An answer of these tokens; `top` is what the last place gave others."""
    several = [Token(text, text.encode(), logprob) for text, logprob in tokens]
    last = several[-1]
    likeliest = tuple((text.encode(), value) for text, value in top.items())
    several[-1] = Token(last.text, last.raw, last.logprob, likeliest)
    return Said("".join(text for text, _ in tokens), tuple(several), "stop")


def pair(a: Said, b: Said, task: str = "t"):
    """Both of one row."""
    return compare(1, "line-1", task, a, b)


def test_the_first_differing_token_is_named_with_its_gaps() -> None:
    """Each side tells how much likelier its own token was than the other's."""
    a = told(("the ", -0.1), ("cat", -0.5), cat=-0.5, dog=-0.75)
    b = told(("the ", -0.2), ("dog", -0.5), dog=-0.5, cat=-1.5)
    found = pair(a, b)
    assert found.result == "flipped"
    assert (found.difference.place, found.difference.unit) == (1, "token")
    assert (found.difference.a, found.difference.b) == ("cat", "dog")
    assert (found.difference.gap_a, found.difference.gap_b) == (0.25, 1.0)
    assert found.difference.gap == 1.0
    assert found.logprob_off == pytest.approx(0.1)


def test_a_token_that_was_not_among_the_likeliest_has_no_gap() -> None:
    """What a side did not tell is not made up."""
    found = pair(told(("cat", -0.5), cat=-0.5), told(("dog", -0.5), dog=-0.5))
    assert found.difference.gap is None


def test_an_answer_that_ends_earlier_differs_at_its_end() -> None:
    """The shorter answer has nothing there."""
    found = pair(told(("a", -1.0)), told(("a", -1.0), ("b", -1.0)))
    assert (found.difference.place, found.difference.a, found.difference.b) == (1, None, "b")


def test_without_tokens_the_place_is_a_character() -> None:
    """An endpoint that tells no log-probabilities is compared by its words."""
    found = pair(Said("left"), told(("leg", -1.0)))
    assert (found.difference.place, found.difference.unit) == (2, "character")
    assert (found.difference.a, found.difference.b) == ("f", "g")


def test_the_same_words_in_other_tokens_are_no_flip() -> None:
    """They are counted apart."""
    found = pair(told(("ab", -1.0)), told(("a", -1.0), ("b", -1.0)))
    assert (found.result, found.has_other_tokens) == ("same", True)


@pytest.mark.parametrize(("a", "b"), [("x", None), (None, "x"), (None, None)])
def test_an_error_is_never_a_flip(a: str | None, b: str | None) -> None:
    """Not even where both sides failed in different ways."""
    sides = [Said(error=("busy", "no")) if text is None else Said(text) for text in (a, b)]
    report = Report(a="a", b="b", pairs=(pair(*sides),))
    assert (report.total.failed, report.total.flipped, report.total.compared) == (1, 0, 0)
    assert report.worst_share == 0


def test_shares_are_of_what_was_compared_and_the_worst_task_counts() -> None:
    """A failed prompt is in no share; the worst task is not watered down by the others."""
    same, other = Said("x"), Said("y")
    failed = Said(error=("busy", "no"))
    pairs = (
        pair(same, same, "calm"),
        pair(same, same, "calm"),
        pair(same, other, "wild"),
        pair(same, same, "wild"),
        pair(same, failed, "wild"),
    )
    report = Report(a="a", b="b", pairs=pairs)
    assert [task.flipped_share for task in report.tasks] == [0, 0.5]
    assert (report.total.flipped_share, report.worst_share) == (0.25, 0.5)
    assert [task["task"] for task in report_json(report)["tasks"]] == ["calm", "wild"]
