"""Settings that would stop the engine are refused when they are made."""

from __future__ import annotations

import pytest

from mmserve.core import BadRequest, SchedConfig


@pytest.mark.parametrize(
    "name", ["max_step_tokens", "chunk_tokens", "max_running", "page_tokens"]
)
def test_a_limit_of_zero_is_refused(name):
    """With it every request would wait for ever."""
    with pytest.raises(BadRequest, match=f"{name} is 0"):
        SchedConfig(**{name: 0})
