"""An error of a matcher that is no Exception, as a panic in Rust is, ends its answer only."""

from __future__ import annotations

import pytest
from whole.engine.test_jumps import PLAIN, ask

from mmserve.constrained.answer import AnswerMatcher
from mmserve.core import Broken, Constraint


class Panic(BaseException):
    """As `pyo3_runtime.PanicException` is."""


@pytest.mark.parametrize(
    ("method", "num_good"), [("allowed", 0), ("accept", 0), ("jump", 0), ("jump", 1)]
)
def test_a_panic_ends_one_answer(engine, monkeypatch, method, num_good):
    """The caller hears of it, and the loop goes on."""
    params = PLAIN.__class__(constraint=Constraint("regex", "[a-z]+"), max_new_tokens=8)
    plain = getattr(AnswerMatcher, method)
    calls = []

    def boom(self, *args):
        calls.append(method)
        if len(calls) > num_good:
            raise Panic("panicked")
        return plain(self, *args)

    with monkeypatch.context() as patched:
        patched.setattr(AnswerMatcher, method, boom)
        with pytest.raises(Broken, match="see the log"):
            ask(engine, params)
    assert ask(engine, params).text
