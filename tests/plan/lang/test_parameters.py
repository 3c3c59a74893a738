"""Parameters: derived from `SamplingParams`, inherited, and asked for only if wanted."""

from __future__ import annotations

from dataclasses import fields

import pytest

from mmserve.core import BadRequest, SamplingParams
from mmserve.lang.parameters import (
    RUN_NAMES,
    CallOptions,
    PlainOptions,
    checked_changes,
    run_options,
)


def test_every_parameter_of_a_gen_is_known():
    """No keyword of a gen is forgotten by the checks."""
    for name in PlainOptions.__annotations__:
        assert checked_changes({name: None}) == {}


def test_every_run_parameter_is_known():
    """No value of a run is forgotten by the checks."""
    for name in RUN_NAMES:
        assert checked_changes({name: None}) == {}


def test_the_runs_defaults_are_those_of_sampling_params():
    """A run without values inherits the core's defaults, 128 tokens among them."""
    assert run_options({}).sampling == SamplingParams()
    assert run_options({}).sampling.max_new_tokens == 128


def test_renamed_parameters_reach_their_fields():
    """The language's words become the core's fields."""
    changes = checked_changes({"max_tokens": 3, "min_tokens": 2, "top_logprobs_num": 4})

    assert changes == {"max_new_tokens": 3, "min_new_tokens": 2, "top_logprobs": 4}
    assert set(changes) <= {spec.name for spec in fields(SamplingParams)}


def test_a_gens_value_wins_over_the_runs():
    """What a gen says replaces what the run said; the rest stays."""
    options = run_options({"temperature": 0.5, "stop": "a"}).changed(
        checked_changes({"stop": ["b", "c"]})
    )

    assert options.sampling.temperature == 0.5
    assert options.sampling.stop == ("b", "c")


def test_asking_for_top_numbers_implies_numbers():
    """top_logprobs_num alone turns return_logprob on."""
    assert run_options({"top_logprobs_num": 2}).call_sampling().return_logprobs is True


def test_refusing_numbers_turns_all_of_them_off():
    """return_logprob=False wins over a start and a count."""
    options = run_options(
        {"return_logprob": False, "top_logprobs_num": 2, "logprob_start_len": 0}
    )

    assert options.call_sampling() == SamplingParams()


def test_a_start_of_minus_one_means_none():
    """logprob_start_len -1 asks for no prompt tokens."""
    options = run_options({"return_logprob": True, "logprob_start_len": -1})

    assert options.call_sampling().prompt_logprobs_from is None


def test_a_bad_value_names_the_languages_word():
    """The error says `max_tokens`, as the program does."""
    with pytest.raises(BadRequest) as caught:
        checked_changes({"max_tokens": "3"})

    assert caught.value.param == "max_tokens"


def test_salt_and_priority_stay_outside_sampling():
    """They are facts of the request, not of the sampling."""
    options = run_options({"cache_salt": "t", "priority": 3})

    assert (options.cache_salt, options.priority) == ("t", 3)
    assert options.sampling == CallOptions().sampling
