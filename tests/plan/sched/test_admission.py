"""What can be served is served; what cannot is refused at once."""

from dataclasses import replace

import pytest
from plan.sched.driver import VOCAB, Driver, alone, prompt

from mmserve.core import BadRequest, Busy, ContextTooLong, LedgerBroken


def test_a_prompt_that_leaves_one_token_fits():
    """With a pool or context of n, a prompt of n - 1 is served with one token of answer."""
    for sizes in ({"num_slots": 40}, {"context": 40}):
        driver = Driver(**sizes)
        driver.add(prompt([1] * 39), max_new_tokens=None)
        driver.run()
        answer = driver.answers[0]
        assert (len(answer.tokens), answer.finish.reason) == (1, "length")


@pytest.mark.parametrize("sizes", [{"num_slots": 40}, {"context": 40}])
def test_a_prompt_that_leaves_none_is_refused(sizes):
    """The refusal names the tokens, split into text and media, and the limit."""
    driver = Driver(**sizes)
    with pytest.raises(ContextTooLong) as caught:
        driver.add(prompt([1] * 30, ("A", 10)))
    assert caught.value.fields == {
        "tokens": 41,
        "limit_tokens": 40,
        "text_tokens": 30,
        "media_tokens": 10,
    }
    assert driver.sched.counts().waiting == 0
    assert driver.sched.wanted() == ()


def test_a_prompt_as_long_as_the_context_can_be_scored():
    """With nothing to generate the prompt may fill the context."""
    driver = Driver(context=40)
    driver.add(prompt([1] * 40), max_new_tokens=0)
    driver.run()
    assert driver.answers[0].finish.reason == "length"


def test_an_answer_is_cut_to_the_context():
    """More tokens than fit are not generated; the reason is length."""
    driver = Driver(context=40)
    driver.add(prompt([1] * 30), max_new_tokens=1000)
    driver.run()
    answer = driver.answers[0]
    assert (len(answer.tokens), answer.finish.reason) == (10, "length")


@pytest.mark.parametrize("token_ids", [[], [VOCAB], [-1]])
def test_a_prompt_that_makes_no_sense_is_refused(token_ids):
    """Empty prompts and tokens outside the vocabulary are refused."""
    with pytest.raises(BadRequest):
        Driver().add(prompt(token_ids))


def test_placeholders_may_lie_behind_the_vocabulary():
    """Ids at media positions are never looked up, so any will do; text has no such freedom."""
    asked = prompt([1, 2], ("A", 3), [4])
    ids = asked.token_ids.copy()
    ids[2:5] = VOCAB + 7
    driver = Driver()
    driver.add(replace(asked, token_ids=ids), max_new_tokens=2)
    driver.run()
    assert len(driver.answers[0].tokens) == 2
    ids[5] = VOCAB + 7
    with pytest.raises(BadRequest):
        Driver().add(replace(asked, token_ids=ids))


def test_a_full_line_is_busy():
    """Beyond `max_waiting` newcomers are turned away, and told when to try again."""
    driver = Driver(max_waiting=2)
    driver.add(prompt([1]))
    driver.add(prompt([1]))
    with pytest.raises(Busy) as caught:
        driver.add(prompt([1]))
    assert caught.value.fields == {"retry_after_s": 1.0}


def test_an_id_is_used_once():
    """Two live sequences cannot have one id."""
    driver = Driver()
    driver.add(prompt([1]))
    spec = next(iter(driver.sched._roster.live.values())).spec
    with pytest.raises(LedgerBroken):
        driver.sched.add(spec)


def test_more_branches_than_may_run_go_in_waves():
    """With two running at once, ten equal prompts all end, also if one leaves midway."""
    driver = Driver(max_running=2)
    for seed in range(10):
        driver.add(
            prompt([1, 2, 3]), seed=seed, temperature=1.0, max_new_tokens=6, ignore_eos=True
        )
    for _ in range(3):
        driver.step()
    driver.take([driver.sched.abort(driver.unfinished[0])])
    small = driver.add(prompt([5]), max_new_tokens=1)
    driver.run()
    assert len(driver.answers[small].tokens) == 1
    assert driver.sched.counts().finished == {"stop": 0, "length": 10, "abort": 1, "error": 0}


def test_a_pool_that_just_fits_one_serves_many():
    """Requests that each need the whole pool are served one after another."""
    driver = Driver(num_slots=40, chunk_tokens=16)
    prompts = [prompt([n] * 30) for n in (1, 2, 3)]
    for each in prompts:
        driver.add(each, max_new_tokens=10)
    driver.run()
    assert driver.tokens() == [alone(each, max_new_tokens=10).tokens for each in prompts]


def test_cached_tokens_make_room_for_new_ones():
    """A cold request evicts what nobody uses, oldest first."""
    driver = Driver(num_slots=64)
    for n in (1, 2, 3):
        driver.add(prompt([n] * 20), max_new_tokens=1)
        driver.run()
    driver.add(prompt([4] * 20), max_new_tokens=1)
    driver.run()
    for n, want in ((2, 19), (3, 19), (4, 19)):
        driver.add(prompt([n] * 20), max_new_tokens=1)
        driver.run()
        assert list(driver.answers.values())[-1].last.usage.cached_tokens == want


def test_a_cached_prefix_is_not_counted_as_room():
    """What a candidate would pin cannot be evicted for it, so it waits instead of crowding."""
    driver = Driver(num_slots=50)
    driver.add(prompt([7] * 20), max_new_tokens=1)
    driver.run()
    driver.add(prompt([1] * 10), max_new_tokens=12, ignore_eos=True)
    driver.step()
    driver.add(prompt([7] * 20, [8] * 15), max_new_tokens=12, ignore_eos=True)
    driver.run()
    assert driver.sched.counts().retractions == 0
    assert driver.answers[2].last.usage.cached_tokens == 20
