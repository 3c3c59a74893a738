"""Choosing tokens: penalties, masks, truncation, seeds."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from mmserve.core import RowSampling, SamplingParams
from mmserve.kernels import sample, uniform_of


def _row(
    seed: int = 0,
    position: int = 0,
    output: tuple[int, ...] = (),
    prompt: tuple[int, ...] | None = None,
    allowed: np.ndarray | None = None,
    banned: tuple[int, ...] = (),
    **params: Any,
) -> RowSampling:
    return RowSampling(
        params=SamplingParams(**params),
        seed=seed,
        position=position,
        output_ids=np.array(output, dtype=np.int64),
        prompt_ids=None if prompt is None else np.array(prompt, dtype=np.int64),
        allowed=allowed,
        banned_ids=banned,
    )


def _bitmask(ids: set[int], vocab_size: int) -> np.ndarray:
    words = np.zeros(-(-vocab_size // 32), dtype=np.uint32)
    for token_id in ids:
        words[token_id // 32] |= np.uint32(1 << (token_id % 32))
    return words


def _edited(logits: np.ndarray, row: RowSampling) -> np.ndarray:
    """Penalties, bias and bans token by token."""
    out = logits.astype(np.float64).copy()
    params, output = row.params, row.output_ids.tolist()
    seen = set(output) | set(row.prompt_ids.tolist() if row.prompt_ids is not None else [])
    for t in range(len(out)):
        if t in seen:
            penalty = params.repetition_penalty
            out[t] = out[t] / penalty if out[t] > 0 else out[t] * penalty
        out[t] -= output.count(t) * params.frequency_penalty
        out[t] -= (t in output) * params.presence_penalty
        out[t] += sum(value for token, value in params.logit_bias if token == t)
        if t in row.banned_ids:
            out[t] = -np.inf
    return out


def _kept(weights: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Distribution after top-k, top-p, min-p by sorting everything."""
    order = sorted(range(len(weights)), key=lambda t: (-weights[t], t))
    if params.top_k > 0:
        order = order[: params.top_k]
    total, kept, reached = sum(weights[t] for t in order), [], 0.0
    for t in order:
        if kept and reached >= params.top_p * total and params.top_p < 1:
            break
        kept.append(t)
        reached += weights[t]
    out = np.zeros_like(weights)
    for t in kept:
        if weights[t] >= params.min_p * weights.max():
            out[t] = weights[t]
    return out / out.sum()


_PARAMS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.3, 1.0, 2.0]),
        "top_k": st.sampled_from([-1, 1, 3, 150]),
        "top_p": st.sampled_from([1.0, 0.9, 0.4, 1e-6]),
        "min_p": st.sampled_from([0.0, 0.1, 0.9]),
        "frequency_penalty": st.sampled_from([0.0, 0.5, -1.0]),
        "presence_penalty": st.sampled_from([0.0, 0.7]),
        "repetition_penalty": st.sampled_from([1.0, 1.3, 0.8]),
        "logit_bias": st.sampled_from([(), ((0, 2.0), (5, -100.0))]),
    }
)


@settings(max_examples=80, deadline=None)
@given(params=_PARAMS, seed=st.integers(0, 2**64 - 1), size=st.sampled_from([7, 300]))
def test_draw_is_the_inverse_distribution_of_a_plain_reference(
    params: dict[str, Any], seed: int, size: int
) -> None:
    """The token is where the row's own number falls in the reference's distribution."""
    rng = np.random.default_rng(seed % 2**32)
    logits = rng.normal(0, 3, size).astype(np.float32)
    row = _row(seed, 3, output=(1, 1, 4), prompt=(2, 6), banned=(3,), **params)
    edited = _edited(logits, row)
    weights = np.exp((edited - edited.max()) / row.params.temperature)
    chances = _kept(weights, row.params)
    drawn = sample(torch.from_numpy(logits)[None].clone(), [row])[0].token_id
    sums = np.cumsum(chances)
    number = uniform_of(seed, 3) * sums[-1]
    assert drawn is not None
    assert chances[drawn] > 0
    assert sums[drawn] - chances[drawn] - 1e-5 <= number <= sums[drawn] + 1e-5


def test_frequencies_follow_the_distribution() -> None:
    """Over many positions of one seed, tokens come as often as the softmax says."""
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0])
    rows = [_row(seed=9, position=i) for i in range(20000)]
    drawn = [choice.token_id for choice in sample(logits.repeat(20000, 1), rows)]
    shares = np.bincount(drawn, minlength=4) / 20000
    np.testing.assert_allclose(shares, logits.softmax(0).numpy(), atol=0.012)


def test_numbers_of_neighbouring_seeds_are_unrelated() -> None:
    """Hashes of (seed, position) are uniform and do not correlate along either."""
    numbers = np.array([[uniform_of(seed, i) for i in range(200)] for seed in range(200)])
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.01
    for shifted in (numbers[1:, :] - numbers[:-1, :], numbers[:, 1:] - numbers[:, :-1]):
        assert abs((shifted**2).mean() - 1 / 6) < 0.01


def test_a_row_draws_the_same_alone_and_among_others() -> None:
    """Neighbours with other parameters do not change what a seeded row draws."""
    logits = torch.randn(6, 500)
    rows = [
        _row(seed=1),
        _row(temperature=0.0),
        _row(seed=2, top_p=0.8),
        _row(seed=2, top_k=5),
        _row(seed=3, output=(4,), frequency_penalty=1.0),
        _row(seed=4, allowed=_bitmask({3, 77, 499}, 500)),
    ]
    together = sample(logits.clone(), rows)
    alone = [sample(logits[i : i + 1].clone(), [row])[0] for i, row in enumerate(rows)]
    assert together == alone


def test_greedy_takes_the_lowest_id_of_equal_logits() -> None:
    """Temperature 0 and top_k 1 break ties towards the lowest token id."""
    logits = torch.tensor([[1.0, 5.0, 5.0, 0.0]] * 2)
    choices = sample(logits, [_row(temperature=0.0), _row(top_k=1, seed=8)])
    assert [choice.token_id for choice in choices] == [1, 1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_only_allowed_tokens_are_drawn(temperature: float) -> None:
    """A bitmask leaves its tokens only, also a mask shorter than the vocabulary."""
    allowed = {2, 33}
    rows = [
        _row(seed=i, temperature=temperature, allowed=_bitmask(allowed, 40)) for i in range(50)
    ]
    drawn = {choice.token_id for choice in sample(torch.randn(50, 100), rows)}
    assert drawn <= allowed


@settings(max_examples=60)
@given(
    vocab_size=st.sampled_from([1, 7, 8, 31, 33, 100, 256]),
    share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    is_mixed=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_mask_leaves_the_best_of_what_it_allows(
    vocab_size: int, share: float, is_mixed: bool, seed: int
) -> None:
    """Bit t of a mask is token t, in vocabularies of any size and beside rows without one."""
    rng = np.random.default_rng(seed)
    logits = rng.permutation(5 * vocab_size).astype(np.float32).reshape(5, vocab_size)
    is_allowed = rng.random(logits.shape) < share
    is_allowed[np.arange(5), rng.integers(vocab_size, size=5)] = True
    has_mask = rng.random(5) < 0.5 if is_mixed else np.ones(5, dtype=bool)
    is_allowed[~has_mask] = True
    rows = [
        _row(
            temperature=0.0,
            allowed=_bitmask(set(np.flatnonzero(bits).tolist()), vocab_size)
            if masked
            else None,
        )
        for bits, masked in zip(is_allowed, has_mask, strict=True)
    ]
    best = np.where(is_allowed, logits, -np.inf).argmax(axis=1)
    choices = sample(torch.from_numpy(logits.copy()), rows)
    assert [choice.token_id for choice in choices] == best.tolist()


def test_log_probabilities_are_of_the_raw_logits() -> None:
    """Temperature, penalties, bias and mask do not change what is reported."""
    logits = torch.randn(1, 50)
    row = _row(
        seed=1,
        temperature=0.5,
        output=(7,),
        presence_penalty=1.5,
        logit_bias=((7, 50.0),),
        allowed=_bitmask({7}, 50),
        return_logprobs=True,
        top_logprobs=3,
    )
    choice = sample(logits.clone(), [row])[0]
    raw = logits[0].log_softmax(0)
    assert choice.token_id == 7
    assert choice.logprob == pytest.approx(float(raw[7]), abs=1e-6)
    best = raw.topk(3)
    assert [token for token, _ in choice.top] == best.indices.tolist()
    assert [value for _, value in choice.top] == pytest.approx(best.values.tolist())


def test_a_broken_row_fails_alone() -> None:
    """Not-a-number, and a mask that allows nothing, are faults of their own rows only."""
    logits = torch.randn(4, 30)
    logits[1, 3] = torch.nan
    nothing = np.zeros(1, dtype=np.uint32)
    rows = [_row(seed=1), _row(seed=2), _row(seed=3, allowed=nothing), _row(temperature=0.0)]
    choices = sample(logits.clone(), rows)
    assert [choice.token_id is None for choice in choices] == [False, True, True, False]
    assert choices[1].fault == "its logits are not finite"
    assert choices[2].fault == "no token is allowed"
    assert choices[3].token_id == int(logits[3].argmax())


def test_a_tiny_temperature_is_greedy() -> None:
    """Dividing by almost nothing does not overflow."""
    logits = torch.randn(1, 40) * 10
    choice = sample(logits.clone(), [_row(seed=5, temperature=1e-300)])[0]
    assert choice.token_id == int(logits.argmax())
