"""Settings that would stop the engine, or mean nothing, are refused when they are made."""

from __future__ import annotations

import math

import pytest

from mmserve.core import BadRequest, SchedConfig, ServerConfig


@pytest.mark.parametrize(
    "name", ["max_step_tokens", "chunk_tokens", "max_running", "page_tokens", "quantum_tokens"]
)
def test_a_limit_of_zero_is_refused(name):
    """With it every request would wait for ever."""
    with pytest.raises(BadRequest, match=f"{name} is 0, the least is 1"):
        SchedConfig(**{name: 0})


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("page_tokens", 65, "the most is 64"),
        ("decode_cost", -0.5, "the least is 0"),
        ("patch_cost", math.inf, "the most is 1e"),
        ("media_ms_cost", math.nan, "the most is 1e"),
        ("target_itl_ms", 0.0, "must be above 0"),
        ("max_sweep_joiners", -1, "the least is 0"),
        ("max_waiting", 0, "the least is 1"),
        ("history_tokens", -1, "the least is 0"),
        ("policy", "lifo", "allowed is longest-prefix, fcfs, priority"),
        ("eviction", "fifo", "allowed is lru, lfu, slru, cost"),
    ],
)
def test_values_out_of_range_are_refused(name, value, words):
    """The refusal names the setting and what is allowed."""
    with pytest.raises(BadRequest, match=words) as caught:
        SchedConfig(**{name: value})
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("page_tokens", 64),
        ("decode_cost", 0.0),
        ("target_itl_ms", 0.001),
        ("target_itl_ms", None),
        ("history_tokens", 0),
        ("client_weights", (("a", 0.01), ("b", 1e6))),
        ("client_priorities", (("a", -5), ("b", 5))),
    ],
)
def test_values_at_the_limit_are_taken(name, value):
    """Ranges are inclusive, and an absent value is no value."""
    assert getattr(SchedConfig(**{name: value}), name) == value


@pytest.mark.parametrize("weight", [0.0, -1.0, math.inf, math.nan])
def test_a_weight_is_above_zero_and_finite(weight):
    """With weight 0 a client would never have a turn; the refusal names the client."""
    with pytest.raises(BadRequest, match="client_weights of 'b' is") as caught:
        SchedConfig(client_weights=(("a", 1.0), ("b", weight)))
    assert caught.value.param == "client_weights"


@pytest.mark.parametrize("name", ["client_weights", "client_priorities"])
def test_a_client_has_one_weight_and_one_priority(name):
    """Which of two holds would be a guess."""
    with pytest.raises(BadRequest, match="'a' twice"):
        SchedConfig(**{name: (("a", 1), ("b", 1), ("a", 2))})


@pytest.mark.parametrize(
    "keys",
    [
        (("a", ""),),
        (("a", "x"), ("b", "x")),
        (("a", "x"), ("a", "y")),
        (("a", "shared"),),
    ],
)
def test_client_keys_tell_clients_apart(keys):
    """An empty key would let everybody pass, one of two owners would tell nobody apart."""
    with pytest.raises(BadRequest) as caught:
        ServerConfig(api_key="shared", client_keys=keys)
    assert caught.value.param == "client_keys"


def test_keys_are_not_in_a_configs_repr():
    """A settings object may be logged."""
    config = ServerConfig(api_key="sesame", client_keys=(("a", "thyme"),))
    assert "sesame" not in repr(config)
    assert "thyme" not in repr(config)
