"""The sampling kernels under Triton's interpreter against their torch twin."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from support.interpreting import computed_by, hasten

from mmserve.core import RowSampling, SamplingParams
from mmserve.kernels import Drawn, sample

pytestmark = pytest.mark.slow

TILE = 128
"""Small, so that small vocabularies have several tiles, the last one cut."""
CASES = {
    "tiny": (7, 30, "normal"),
    "one-tile": (128, 20, "normal"),
    "three-tiles": (300, 40, "normal"),
    "ties": (300, 20, "ties"),
    "few-levels": (150, 16, "levels"),
    "flat": (260, 10, "flat"),
    "broken": (140, 16, "broken"),
}
"""Vocabulary, rows, and what the logits are like."""
NUM_DRAWS = 400


def _logits(
    kind: str, num_rows: int, vocab_size: int, rng: np.random.Generator
) -> torch.Tensor:
    values = rng.normal(0, rng.choice([0.5, 3, 10]), (num_rows, vocab_size))
    if kind == "ties":
        values = values.round()
    if kind == "levels":
        values = rng.integers(0, 2, values.shape) * 1.5
    if kind == "flat":
        values[:] = 2.0
    logits = torch.from_numpy(values.astype(np.float32))
    if kind == "broken":
        logits[1::4, 5] = torch.nan
        logits[2::4, 7] = torch.inf
        logits[3::8] = -torch.inf
    return logits


def _row(vocab_size: int, rng: np.random.Generator, *, is_listed: bool) -> RowSampling:
    """A row that asks for anything; lists of the likeliest only where no two are equal."""

    def ids(count: int) -> np.ndarray:
        return rng.integers(0, vocab_size, count).astype(np.int64)

    repetition = float(rng.choice([1.0, 1.0, 1.3, 0.8]))
    params = SamplingParams(
        temperature=float(rng.choice([0.0, 0.3, 1.0, 1.0, 2.0, 1e-300])),
        top_k=int(rng.choice([-1, -1, 1, 3, 50, vocab_size, 2 * vocab_size])),
        top_p=float(rng.choice([1.0, 1.0, 0.9, 0.4, 1e-6])),
        min_p=float(rng.choice([0, 0, 0.1, 0.9, 1.0])),
        frequency_penalty=float(rng.choice([0, 0, 0.5, -1])),
        presence_penalty=float(rng.choice([0, 0, 0.7])),
        repetition_penalty=repetition,
        logit_bias=((0, 2.0), (5, -100.0), (0, 1.0)) if rng.random() < 0.3 else (),
        return_logprobs=bool(rng.random() < 0.3),
        top_logprobs=int(rng.choice([0, 0, 3, 5])) if is_listed else 0,
    )
    return RowSampling(
        params=params,
        seed=int(rng.integers(-(2**63), 2**63 - 1)),
        position=int(rng.integers(0, 1000)),
        output_ids=ids(int(rng.integers(0, 12))),
        prompt_ids=ids(6) if repetition != 1.0 else None,
        allowed=_allowed(vocab_size, rng),
        banned_ids=tuple(ids(2).tolist()) if rng.random() < 0.2 else (),
    )


def _allowed(vocab_size: int, rng: np.random.Generator) -> np.ndarray | None:
    """A mask of few or many tokens, now and then too short or of nothing, or none."""
    if rng.random() < 0.6:
        return None
    bits = rng.random(vocab_size + 7) < rng.choice([0.0, 0.05, 0.5, 0.95])
    words = np.packbits(np.pad(bits, (0, -len(bits) % 32)), bitorder="little").view(np.uint32)
    return words[: len(words) // 2 + 1].copy() if rng.random() < 0.3 else words


@cache
def _case(name: str) -> tuple[torch.Tensor, list[RowSampling]]:
    vocab_size, num_rows, kind = CASES[name]
    rng = np.random.default_rng(sum(name.encode()))
    is_listed = kind in ("normal", "broken")
    rows = [_row(vocab_size, rng, is_listed=is_listed) for _ in range(num_rows)]
    return _logits(kind, num_rows, vocab_size, rng), rows


def _plain(position: int, **params: Any) -> RowSampling:
    nothing = np.zeros(0, dtype=np.int64)
    return RowSampling(SamplingParams(**params), 11, position, nothing)


def _draws() -> tuple[torch.Tensor, list[RowSampling]]:
    """Many positions of one seed, some cut to the likeliest; chances are those of a softmax."""
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5])
    rows = [_plain(i) if i % 2 else _plain(i, top_k=3) for i in range(NUM_DRAWS)]
    return logits.repeat(NUM_DRAWS, 1), rows


@cache
def _computed() -> dict[str, Any]:
    found: dict[str, Any] = computed_by(__file__)
    return found


@pytest.mark.parametrize("name", CASES)
def test_choices_equal_the_twin(name: str) -> None:
    """Tokens and faults are torch's, whatever is mixed: penalties, masks, truncation, ties."""
    logits, rows = _case(name)
    expected = sample(logits.clone(), rows)
    found = _computed()[name]
    assert [row[0] for row in found] == [choice.token_id for choice in expected]
    assert [row[3] for row in found] == [choice.fault for choice in expected]


def test_the_cases_hold_every_kind_of_row() -> None:
    """Greedy and drawn, truncated each way, edited, masked, and both faults occur."""
    choices = [choice for name in CASES for choice in sample(*_copied(name))]
    rows = [row for name in CASES for row in _case(name)[1]]
    faults = {choice.fault for choice in choices}
    assert faults == {None, "its logits are not finite", "no token is allowed"}
    assert len({choice.token_id for choice in choices}) > 50
    for is_met in (
        lambda row: row.params.temperature == 0,
        lambda row: row.params.top_k > 0 and row.params.top_p < 1 and row.params.min_p > 0,
        lambda row: row.allowed is not None and row.params.temperature > 0,
        lambda row: row.params.repetition_penalty != 1 and len(row.banned_ids) > 0,
    ):
        assert sum(is_met(row) for row in rows) >= 10


def _copied(name: str) -> tuple[torch.Tensor, list[RowSampling]]:
    logits, rows = _case(name)
    return logits.clone(), rows


@pytest.mark.parametrize("name", CASES)
def test_log_probabilities_equal_the_twin(name: str) -> None:
    """They are of the raw logits and only there if asked for, lists included."""
    logits, rows = _case(name)
    for expected, found in zip(sample(logits.clone(), rows), _computed()[name], strict=True):
        _, logprob, top, _ = found
        assert (logprob is None) == (expected.logprob is None)
        if logprob is not None:
            assert logprob == pytest.approx(expected.logprob, rel=1e-5, abs=1e-5)
        assert [token for token, _ in top] == [token for token, _ in expected.top]
        values = [value for _, value in expected.top]
        assert [value for _, value in top] == pytest.approx(values, rel=1e-5, abs=1e-5)


def test_a_row_draws_the_same_alone_and_among_others() -> None:
    """Each row of a mixed step, drawn alone, gives the same token and log-probability."""
    together = _computed()["three-tiles"][:12]
    assert _computed()["alone"] == together


def test_frequencies_follow_the_distribution() -> None:
    """Chi-square of draws at many positions stays below its 99.9th percentile."""
    logits, _ = _draws()
    tokens = np.array(_computed()["draws"])
    whole = torch.softmax(logits[0].double(), 0).numpy()
    cut = np.where(whole >= np.sort(whole)[-3], whole, 0)
    halves = (tokens[1::2], whole, 18.47), (tokens[::2], cut / cut.sum(), 13.82)
    for drawn, chances, most in halves:  # 4 and 2 degrees of freedom
        counts, expected = np.bincount(drawn, minlength=5), chances * len(drawn)
        assert counts[chances == 0].sum() == 0
        known = chances > 0
        assert ((counts - expected)[known] ** 2 / expected[known]).sum() < most


def test_tokens_for_the_next_step_stay_where_they_are() -> None:
    """`token_ids` holds what `read` tells, and 0 where a row has a fault."""
    told = [row[0] or 0 for row in _computed()["broken"]]
    assert _computed()["token_ids"] == told


def test_no_rows_give_no_choices() -> None:
    """A step that draws nothing reads an empty list."""
    assert _computed()["none"] == []


def _listed(choices: Sequence[Drawn]) -> list[tuple[Any, ...]]:
    return [(each.token_id, each.logprob, each.top, each.fault) for each in choices]


def _main() -> None:
    """Draw all cases and print what came out."""
    from mmserve.kernels.triton import drawing  # noqa: PLC0415 - under the interpreter only

    hasten()
    np.seterr(all="ignore")  # inf - inf of broken rows
    drawing.sampling_tile = lambda vocab_size: (TILE, -(-vocab_size // TILE))
    found: dict[str, Any] = {}
    for name in CASES:
        draws = drawing.begin_draw(*_copied(name))
        found[name] = _listed(draws.read())
        if name == "broken":
            found["token_ids"] = draws.token_ids.tolist()
    logits, rows = _copied("three-tiles")
    found["alone"] = [
        _listed(drawing.begin_draw(logits[i : i + 1].clone(), rows[i : i + 1]).read())[0]
        for i in range(12)
    ]
    found["draws"] = drawing.begin_draw(*_draws()).token_ids.tolist()
    found["none"] = drawing.begin_draw(torch.zeros(0, 9), []).read()
    print(json.dumps(found))  # noqa: T201 - to the parent


if __name__ == "__main__":
    _main()
