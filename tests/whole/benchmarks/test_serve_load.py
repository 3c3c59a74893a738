"""A small load on a real server in processes of its own."""

from __future__ import annotations

import pytest

from benchmarks.serve_load import Load, measure


@pytest.mark.slow
def test_a_small_load_breaks_no_promise() -> None:
    """Answers, ends, counts and slots are as they must be, beside clients who leave."""
    load = Load(
        requests=60, streams=12, pictures=3, left_share=0.1, refused_share=0.1, repeats=1
    )
    record, faults = measure(load, ["load"], has_kill=True)
    assert faults == []
    calls = {row["kind"]: row["calls"] for row in record.rows if row["measured"] == "calls"}
    assert calls == {"answered": 48, "left": 6, "refused": 6}
    assert record.summary["swap_seen_share"] > 0.5
    assert record.summary["violations"] == 0
