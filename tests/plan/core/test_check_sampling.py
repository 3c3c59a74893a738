"""What a model cannot serve is refused before it is scheduled."""

from __future__ import annotations

import pytest

from mmserve.core import BadRequest, Constraint, SamplingParams, check_sampling

NOT_A_TYPE = {
    "n": (1.5, None, "2"),
    "max_new_tokens": (2.5, "5"),
    "top_k": (2.5,),
    "top_logprobs": (2.5,),
    "temperature": ("hot", None),
    "seed": (1.5, "x"),
    "stop": ("END", (5,), {"END": 1}),
    "stop_token_ids": (3, ("a",), (1.5,)),
    "logit_bias": ({5: 1.0}, ((1.5, 2.0),), ((1, "x"),)),
    "constraint": ("[a-z]+",),
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, some in NOT_A_TYPE.items() for value in some]
)
def test_a_wrong_type_is_refused_and_named(name, value):
    """A type that would fail a step, and so its neighbours, never gets to one."""
    with pytest.raises(BadRequest, match=name) as caught:
        check_sampling(SamplingParams(**{name: value}), 100)
    assert caught.value.fields["reason"] == "type"


def test_what_can_be_served_passes():
    """Whole numbers stand for numbers, lists for tuples; foreign stop tokens are harmless."""
    params = SamplingParams(
        max_new_tokens=None,
        temperature=1,
        seed=-5,
        stop=["x"],
        stop_token_ids=[-1, 119690],
        logit_bias=[(3, 1)],
        constraint=Constraint("regex", "a"),
    )
    check_sampling(params, 100)
