"""Every example gives the same answers here and over HTTP, alone and in batches."""

from __future__ import annotations

from typing import Any

import pytest

from mmserve.lang import ProgramState

ALONE: dict[str, list[dict[str, Any]]] = {}
"""What each example's rows say one after the other on the engine, by its name."""


def said(state: ProgramState) -> dict[str, Any]:
    """All that can be read of a state: its text, its turns, its variables, its result."""
    text = state.text()
    values = {name: state[name] for name in state.execution.variables}
    return {
        "text": text,
        "roles": [message["role"] for message in state.messages()],
        "values": values,
        "returned": state.ret_value,
    }


def one_by_one(example, backend) -> list[dict[str, Any]]:
    """What the rows say, each run to its end before the next begins."""
    return [
        said(example.program.run(**row, temperature=0, backend=backend)) for row in example.rows
    ]


@pytest.fixture
def alone(name, example) -> list[dict[str, Any]]:
    """What the rows say alone, on the engine, from an empty cache; found out once."""
    if name not in ALONE:
        example.place.forget()
        ALONE[name] = one_by_one(example, example.place.engine)
    return ALONE[name]


def test_rows_say_the_same_over_http(example, alone) -> None:
    """Texts, variables and results of the server are those of the engine, row by row."""
    assert one_by_one(example, example.place.endpoint) == alone


@pytest.mark.parametrize(("where", "num_threads"), [("engine", 1), ("endpoint", 16)])
def test_batches_say_the_same(example, alone, where, num_threads) -> None:
    """Texts, variables and results of a batch are those of its rows alone.

    Rows of many threads meet in an empty cache, those of one thread find what was left there.
    """
    if num_threads > 1:
        example.place.forget()

    states = example.program.run_batch(
        example.rows,
        num_threads=num_threads,
        temperature=0,
        backend=getattr(example.place, where),
    )

    assert [said(state) for state in states] == alone
