"""The fake runner is honest: wrong slots, missing pictures and double writes show."""

import numpy as np
import pytest

from mmserve.core import (
    EncodeItem,
    FeatureUse,
    ForwardPlan,
    LedgerBroken,
    PlanRow,
    RowSampling,
    RunnerFailed,
    SamplingParams,
)
from mmserve.testing.fake_runner import FakeRunner

A = b"a" * 16


def ints(values):
    """An int64 array."""
    return np.array(values, dtype=np.int64)


def sampling(*, seed=0, position=0, allowed=None, banned_ids=(), **params):
    """What a row's choice depends on."""
    params = SamplingParams(**{"temperature": 0.0, **params})
    return RowSampling(params, seed, position, ints([]), None, allowed, banned_ids)


def row(token_ids, slots, *, start=0, features=(), sequence_id=0, **options):
    """A row that draws a token, unless told otherwise."""
    options.setdefault("sampling", sampling())
    return PlanRow(sequence_id, start, ints(token_ids), ints(slots), features, **options)


def run(runner, *rows, **options):
    """Execute one plan; its rows' results."""
    return runner.execute(ForwardPlan(1, rows, **options)).rows


def draw(runner, *args, **options):
    """The token that one row draws."""
    return run(runner, row(*args, **options))[0].token_id


def test_the_answer_depends_on_tokens_and_not_on_slots():
    """Equal tokens in other slots give the same token; other tokens another."""
    runner = FakeRunner(100, 1000)
    assert draw(runner, [1, 2, 3], [0, 1, 2]) == draw(runner, [1, 2, 3], [50, 9, 30])
    assert draw(runner, [1, 2, 3], [0, 1, 2]) != draw(runner, [1, 3, 2], [0, 1, 2])


def test_pieces_give_the_answer_of_the_whole():
    """Tokens computed in two steps are read back from their slots."""
    runner = FakeRunner(100, 1000)
    whole = draw(runner, [1, 2, 3], [0, 1, 2])
    run(runner, row([1, 2], [5, 6], sampling=None))
    assert draw(runner, [3], [5, 6, 7], start=2) == whole


def test_a_row_reads_what_an_earlier_row_writes():
    """All rows write before any reads."""
    runner = FakeRunner(100, 1000)
    whole = draw(runner, [1, 2, 3], [0, 1, 2])
    rows = run(runner, row([1, 2], [5, 6]), row([3], [5, 6, 7], start=2, sequence_id=1))
    assert rows[1].token_id == whole


@pytest.mark.parametrize("slots", [[6, 5, 7], [5, 8, 7]])
def test_wrong_slots_give_a_wrong_answer(slots):
    """Slots in the wrong order, or never written, show in the token."""
    runner = FakeRunner(100, 10**6)
    whole = draw(runner, [1, 2, 3], [0, 1, 2])
    run(runner, row([1, 2], [5, 6], sampling=None))
    assert draw(runner, [3], slots, start=2) != whole


def test_pictures_count_by_digest_and_offset():
    """Another picture, or another part of it, gives another token."""
    runner = FakeRunner(100, 10**6)
    encode = (EncodeItem(A, {}), EncodeItem(b"b" * 16, {}))
    seen = set()
    for use in (
        None,
        FeatureUse(A, 0, 1, 2),
        FeatureUse(A, 1, 1, 2),
        FeatureUse(b"b" * 16, 0, 1, 2),
    ):
        each = row([1, 9, 9, 2], range(4), features=() if use is None else (use,))
        seen.add(run(runner, each, encode=encode)[0].token_id)
        encode = ()
    assert len(seen) == 4
    assert runner.encodes == {A: 1, b"b" * 16: 1}


def test_features_must_be_encoded_and_not_dropped():
    """Using, or encoding again, against the contract raises."""
    runner = FakeRunner(100, 1000)
    each = row([9, 9], [0, 1], features=(FeatureUse(A, 0, 0, 2),))
    with pytest.raises(LedgerBroken):
        run(runner, each)
    run(runner, each, encode=(EncodeItem(A, {}),))
    with pytest.raises(LedgerBroken):
        run(runner, each, encode=(EncodeItem(A, {}),))
    with pytest.raises(LedgerBroken):
        run(runner, each, drop=(A,))
    run(runner, each, drop=(A,), encode=(EncodeItem(A, {}),))
    assert runner.features == {A}


@pytest.mark.parametrize(
    "rows",
    [
        [row([1], [3]), row([2], [3])],
        [row([1, 2], [3, 3])],
        [row([1, 2], [3])],
        [row([], [])],
    ],
)
def test_malformed_rows_are_found(rows):
    """Two writers of a slot, a slot twice, or rows without tokens are errors."""
    with pytest.raises(LedgerBroken):
        run(FakeRunner(100, 1000), *rows)


def test_masks_and_bans_are_obeyed():
    """Only allowed tokens that are not banned are drawn; if there are none, it raises."""
    runner = FakeRunner(100, 64)
    allowed = np.array([0b1010, 0b1], dtype=np.uint32)
    for token_id in range(20):
        options = sampling(allowed=allowed, banned_ids=(3,))
        assert draw(runner, [token_id], [0], sampling=options) in (1, 32)
    with pytest.raises(LedgerBroken):
        draw(runner, [1], [0], sampling=sampling(allowed=allowed, banned_ids=(1, 3, 32)))


def test_seed_and_position_matter_only_if_not_greedy():
    """Greedy tokens depend on the prefix alone."""
    runner = FakeRunner(100, 10**6)
    greedy = {draw(runner, [1], [0], sampling=sampling(seed=seed)) for seed in range(5)}
    drawn = {
        draw(runner, [1], [0], sampling=sampling(seed=seed, position=position, temperature=1.0))
        for seed in (1, 2)
        for position in (0, 1)
    }
    assert (len(greedy), len(drawn)) == (1, 4)


def test_a_rule_chooses_from_the_tokens():
    """A rule sees the token ids that the slots hold."""
    runner = FakeRunner(100, 1000, rule=sum)
    assert draw(runner, [1, 2, 3], [7, 8, 9]) == 6


def test_the_end_token_comes_now_and_then():
    """With `eos` set about one prefix in eight ends."""
    runner = FakeRunner(100, 1000, eos=999)
    num_ends = sum(draw(runner, [token_id], [0]) == 999 for token_id in range(400))
    assert 20 < num_ends < 100


def test_scores_depend_on_the_prefix_only():
    """Scores asked for are those of known tokens, the same in pieces."""
    runner = FakeRunner(100, 1000)
    whole = run(runner, row([1, 2, 3, 4], range(4), logprobs_from=1))[0].prompt_logprobs
    assert [score[0] for score in whole] == [1, 2, 3]
    first = row([1, 2], [10, 11], logprobs_from=1, next_id=3, sampling=None)
    pieces = run(runner, first)[0].prompt_logprobs
    pieces += run(runner, row([3, 4], range(10, 14), start=2, logprobs_from=1))[
        0
    ].prompt_logprobs
    assert pieces == whole


def test_top_tokens_are_the_likeliest():
    """The best of the top has the highest log-probability."""
    runner = FakeRunner(100, 50)
    result = run(runner, row([1], [0], sampling=sampling(top_logprobs=5)))[0]
    values = [logprob for _, logprob in result.top]
    assert len(values) == 5
    assert values == sorted(values, reverse=True)


def test_a_failure_spoils_the_slots_of_its_step():
    """A step told to fail raises once, and nothing it was to write holds."""
    runner = FakeRunner(100, 10**6)
    want = draw(runner, [1, 2, 3], [0, 1, 2])
    runner.fail_next(RunnerFailed("lost", step=1))
    with pytest.raises(RunnerFailed):
        run(runner, row([1, 2], [0, 1]))
    assert draw(runner, [3], [0, 1, 2], start=2) != want
    assert draw(runner, [1, 2, 3], [0, 1, 2]) == want


def test_a_single_row_can_fail():
    """Errors set for a sequence are in its row alone."""
    runner = FakeRunner(100, 1000)
    error = ValueError("nan")
    runner.row_errors = {1: error}
    first, second = run(runner, row([1], [0]), row([1], [1], sequence_id=1))
    assert (first.error, second.error, second.token_id) == (None, error, None)


def test_work_is_counted():
    """Steps, rows and tokens add up."""
    runner = FakeRunner(100, 1000)
    run(runner, row([1, 2], [0, 1]), row([3], [2], sequence_id=1))
    run(runner, row([1], [3]))
    assert (runner.num_steps, runner.num_rows, runner.num_tokens) == (2, 3, 4)
