"""What the benchmarks on SmolLM2 tell follows from what they measured."""

from __future__ import annotations

import time

import pytest

from benchmarks.ceilings import Ceilings
from benchmarks.engines import Answer
from benchmarks.memory import judged, slope
from benchmarks.model_costs import ModelCosts
from benchmarks.no_reuse import Clock, Timed, prompts
from benchmarks.shared_prefix import summarise as summarise_prefix
from benchmarks.single import FULL, Probe, rows_of
from benchmarks.single import summarise as summarise_single
from benchmarks.text_lanes import LANES, LaneSpec, absent_rows, differences, lanes_named

COSTS = ModelCosts(
    matrix_values=1000, head_values=200, gain_values=0, attention_width=0, num_layers=1
)


def answer(job_id: str, *token_ids: int) -> Answer:
    """An answer of some tokens."""
    return Answer(
        id=job_id, token_ids=token_ids, text="", num_tokens=len(token_ids), first_token_s=None
    )


def probe(decode: float, prefill: float) -> Probe:
    """A round with these rates."""
    return Probe({1: decode, 8: 2 * decode, 32: 3 * decode}, prefill, 0.5, {}, 0.0)


def ceilings(read: float, matrix: float) -> Ceilings:
    """Ceilings of a round."""
    return Ceilings(
        threads=2, read_bytes_per_s=read, copy_bytes_per_s=2 * read, matrix_flop_per_s=matrix
    )


# single


def test_shares_are_of_the_ceiling_of_their_own_round() -> None:
    """A machine that is twice as slow in one round does not change a share."""
    several = [probe(10.0, 100.0), probe(5.0, 50.0)]
    limits = [ceilings(80_000.0, 400_000.0), ceilings(40_000.0, 200_000.0)]
    rows = rows_of(LANES[0], several, limits, COSTS, prompt_tokens=100)
    shares = {row["measured"]: row.get("share_of_ceiling") for row in rows}
    assert shares["decode, 1"] == pytest.approx(10 * 4000 / 80_000)
    flop = 2 * 100 * 800 + 2 * 200
    assert shares["prefill, 100"] == pytest.approx(100.0 * flop / 100 / 400_000)
    assert shares["decode, 8"] is None


def test_int8_is_measured_against_a_byte_a_value() -> None:
    """The same rate is a quarter of the share."""
    limits = [ceilings(80_000.0, 1.0)]
    lanes = {lane.name: lane for lane in LANES}
    full, eight = (
        rows_of(lanes[name], [probe(10.0, 1.0)], limits, COSTS, 100)[0]["share_of_ceiling"]
        for name in ("mmserve", "mmserve, int8")
    )
    assert full == pytest.approx(4 * eight)


def rate(engine: str, bits: str, measured: str, tokens_per_s: float) -> dict[str, object]:
    """A row of `single`."""
    return {
        "engine": engine,
        "bits": bits,
        "measured": measured,
        "tokens_per_s": tokens_per_s,
    }


def test_ratios_compare_engines_of_the_same_bits() -> None:
    """The int8 engine is held against int8 engines only, and the worse of both ratios told."""
    rows = [
        rate("mmserve", "fp32", "decode, 8", 120.0),
        rate("mmserve, int8", "int8", "decode, 8", 200.0),
        rate("llama.cpp", "fp32", "decode, 8", 100.0),
        rate("llama.cpp, int8", "int8", "decode, 8", 250.0),
        rate("vllm", "fp32", "decode, 8", 150.0),
    ]
    found = summarise_single(rows, FULL)
    assert found["streams8_over_llama_cpp_fp32"] == pytest.approx(1.2)
    assert found["streams8_over_llama_cpp_int8"] == pytest.approx(0.8)
    assert found["streams8_over_llama_cpp"] == pytest.approx(0.8)
    assert found["streams8_over_best_other_fp32"] == pytest.approx(0.8)
    assert "streams32_over_llama_cpp" not in found


# shared_prefix


def test_best_other_is_of_the_same_bits_and_not_ours() -> None:
    """Neither our own int8 lane nor another's counts for the full weights."""
    rows = [
        {"engine": "mmserve", "bits": "fp32", "requests_per_s": 12.0, "different_answers": 1},
        {"engine": "mmserve, int8", "bits": "int8", "requests_per_s": 20.0},
        {"engine": "openvino", "bits": "fp32", "requests_per_s": 8.0},
        {"engine": "openvino, int8", "bits": "int8", "requests_per_s": 16.0},
        {"engine": "vllm", "not_run": "no environment"},
    ]
    found = summarise_prefix(rows)
    assert found["requests_per_second"] == 12.0
    assert found["over_best_other"] == pytest.approx(1.5)
    assert found["over_best_other_int8"] == pytest.approx(1.25)
    assert found["different_answers"] == 1


# Lanes


def test_differences_are_of_answers_that_both_have_as_tokens() -> None:
    """An answer without token ids, or without a counterpart, is not compared."""
    ours = {"a": answer("a", 1, 2), "b": answer("b", 3), "c": answer("c", 4)}
    theirs = {"a": answer("a", 1, 2), "b": answer("b", 5)}
    assert differences(ours, theirs) == (1, 2)


def test_every_lane_has_a_result_or_a_reason() -> None:
    """What a quick run leaves out is told as such, beside what could not run."""
    wanted = lanes_named(None, is_quick=True)
    rows = absent_rows({"llama.cpp": "no compiler"}, wanted)
    reasons = {row["engine"]: row["not_run"] for row in rows}
    assert reasons["llama.cpp"] == "no compiler"
    assert {lane.name for lane in LANES} == {lane.name for lane in wanted} | (
        reasons.keys() - {"llama.cpp"}
    )


def test_engines_that_do_not_batch_answer_one_by_one() -> None:
    """The contract says of each engine whether it is handed all jobs at once."""
    taking = {lane.name: lane.takes_all for lane in LANES}
    assert taking["mmserve"]
    assert taking["vllm"]
    assert not taking["transformers"]
    assert not LaneSpec("x", "nobody").takes_all


# memory


def test_slope_is_not_moved_by_an_outlier() -> None:
    """One sample far off leaves the slope of a straight line."""
    points = [(float(x), 3.0 * x + 1) for x in range(20)]
    points[7] = (7.0, 500.0)
    assert slope(points) == pytest.approx(3.0)
    assert slope([(1.0, 2.0)]) == 0.0


def sampled(minute: float, resident: float) -> dict[str, float]:
    """A sample in which only memory changes."""
    same = {"children_mib": 1.0, "threads": 5.0, "files": 9.0, "blocks": 100.0}
    return {
        "at_s": 60 * minute,
        "resident_mib": resident,
        "slots_unaccounted": 0.0,
        "requests": 10.0,
        **same,
    }


def test_growth_while_warming_is_not_judged() -> None:
    """Memory that grows for the first third and then stays has not grown; steady growth has."""
    warming = [sampled(minute, 100 + 50 * min(minute, 9.0)) for minute in range(31)]
    assert judged(warming)["grown_share_resident"] == 0.0
    steady = [sampled(minute, 100.0 + minute) for minute in range(31)]
    assert judged(steady)["grown_mib_resident"] == pytest.approx(20.0)
    assert judged(steady)["grown_threads"] == 0.0


# no_reuse


def test_prompts_share_no_beginning() -> None:
    """First tokens are all different, lengths are bounded, and a seed repeats them."""
    made = prompts(200, 128)
    assert len({token_ids[0] for token_ids, _ in made}) == 200
    assert all(4 <= len(token_ids) <= 128 and 4 <= most <= 128 for token_ids, most in made)
    assert made == prompts(200, 128)


class Worker:
    """Something with calls that take time."""

    size = 3

    def work(self, seconds: float) -> float:
        """Sleep."""
        time.sleep(seconds)
        return seconds

    def idle(self) -> None:
        """Sleep, but nobody asks."""
        time.sleep(0.02)

    def launch(self) -> Worker:
        """Something whose end is waited for."""
        return Worker()

    def finish(self) -> None:
        """Wait for it."""
        time.sleep(0.02)


def test_only_named_calls_are_timed() -> None:
    """Their results pass through, and so does what is no call."""
    clock = Clock()
    timed = Timed(Worker(), "worker", clock, ("work",))
    assert timed.work(0.02) == 0.02
    assert timed.size == 3
    timed.idle()
    assert clock.num_calls == {"worker.work": 1}
    assert 0.02 <= clock.seconds["worker"] < 0.04


def test_the_end_of_a_launched_step_is_timed_too() -> None:
    """Waiting for what `launch` gave is booked beside the launch."""
    clock = Clock()
    timed = Timed(Worker(), "runner", clock, ("launch",), ("finish",))
    timed.launch().finish()
    assert clock.num_calls == {"runner.launch": 1, "runner.finish": 1}
    assert clock.seconds["runner"] >= 0.02


def test_a_call_that_fails_is_timed_as_well() -> None:
    """Its time has passed all the same."""
    clock = Clock()
    timed = Timed(Worker(), "worker", clock)
    with pytest.raises(TypeError):
        timed.work("long")
    assert clock.num_calls == {"worker.work": 1}
