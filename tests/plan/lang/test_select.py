"""select: exact scores of exactly the option's tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

import mmserve.lang as sgl
from mmserve.core import BackendFailed, Turn
from mmserve.testing.fake_client import FakeClient, fake_logprob

OPTIONS = ["yes", "no", "maybe not"]
RULES = [
    sgl.token_length_normalized,
    sgl.greedy_token_selection,
    sgl.unconditional_likelihood_normalized,
]


def scores_of(prompt_ids, option_ids):
    """l_j of an option, by brute force."""
    ids = [*prompt_ids, *option_ids]
    return [fake_logprob(ids[:k], ids[k]) for k in range(len(prompt_ids), len(ids))]


def winner(rule, prompt_ids, options):
    """The option that a rule picks from brute-force numbers."""
    rows = [scores_of(prompt_ids, option.encode()) for option in options]
    alone = [[0.0, *scores_of([], option.encode())[1:]] for option in options]
    return rule(
        choices=options,
        normalized_prompt_logprobs=[sum(row) / len(row) for row in rows],
        input_token_logprobs=[[[value, 0, None] for value in row] for row in rows],
        output_token_logprobs=[[] for _ in rows],
        unconditional_token_logprobs=[[[value, 0, None] for value in row] for row in alone],
    ).decision


def choose(client, question, options, **values):
    """Run one select."""

    @sgl.function
    def program(s):
        s += sgl.user(question)
        s += sgl.assistant(sgl.select("c", options, **values))

    return program.run(backend=client)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_the_winner_is_the_brute_force_winner(client, rule):
    """For twenty prompts, by each rule."""
    for number in range(20):
        prompt_ids = [256, *f"[user]{number}?[/user][assistant]".encode()]
        state = choose(client, f"{number}?", OPTIONS, choices_method=rule)

        assert state["c"] == winner(rule, prompt_ids, OPTIONS)


def test_the_scores_are_those_of_the_options_tokens_only(client):
    """No token of the prompt is counted, and the mean is over all of an option's tokens."""
    meta = choose(client, "Q", OPTIONS).get_meta_info("c")
    prompt_ids = [256, *b"[user]Q[/user][assistant]"]
    rows = [scores_of(prompt_ids, option.encode()) for option in OPTIONS]

    assert [[entry[0] for entry in row] for row in meta["input_token_logprobs"]] == rows
    assert meta["normalized_prompt_logprobs"] == [sum(row) / len(row) for row in rows]
    assert OPTIONS[meta["choice_index"]] == choose(client, "Q", OPTIONS)["c"]


def test_an_option_that_would_move_the_prompts_tokens_is_tokenised_alone():
    """After "un", "happy" keeps "un" as it is, though "unhappy" is one token."""
    client = FakeClient(pieces=["unhappy", "happy", "un"])
    un, happy = client.tokenize("un")[0], client.tokenize("happy")[0]

    @sgl.function
    def program(s):
        s += "un" + sgl.select("c", ["happy", "do"])

    meta = program.run(backend=client).get_meta_info("c")

    assert meta["input_token_logprobs"] == [
        [[fake_logprob([256, un], happy), happy, None]],
        [
            [fake_logprob([256, un], ord("d")), ord("d"), None],
            [fake_logprob([256, un, ord("d")], ord("o")), ord("o"), None],
        ],
    ]


def test_an_option_may_merge_with_more_than_one_token_of_the_prompt():
    """After "x", "y", "z" counts as itself, though "xyz" is one token, fewer than the two."""
    client = FakeClient(pieces=["xyz"])

    @sgl.function
    def program(s):
        s += "xy" + sgl.select("c", ["z", "q"])

    meta = program.run(backend=client).get_meta_info("c")

    assert [row[0][1] for row in meta["input_token_logprobs"]] == [ord("z"), ord("q")]
    assert meta["input_token_logprobs"][0][0][0] == fake_logprob([256, *b"xy"], ord("z"))


def test_the_winner_is_appended_in_its_turn(client):
    """What follows sees it."""

    @sgl.function
    def program(s):
        s += sgl.user("Q")
        with s.assistant():
            s += sgl.select("c", ["yes"])
            s += " because" + sgl.gen("why", max_tokens=1)

    program.run(backend=client).sync()
    last = client.requests[-1].parts[-1]

    assert isinstance(last, Turn)
    assert [part.text for part in last.parts] == ["yes because"]


def test_an_own_rule_decides_and_reports(client):
    """Any callable with the rules' parameters is a rule."""
    seen = {}

    def longest(**lists):
        seen.update(lists)
        return sgl.ChoicesDecision(max(lists["choices"], key=len), {"why": "longest"})

    state = choose(client, "Q", OPTIONS, choices_method=longest)

    assert state["c"] == "maybe not"
    assert state.get_meta_info("c")["why"] == "longest"
    assert seen["unconditional_token_logprobs"] is None


def test_a_rule_that_picks_no_option_is_an_error(client):
    """The error is raised where the choice is read."""
    state = choose(
        client, "Q", OPTIONS, choices_method=lambda **lists: sgl.ChoicesDecision("other")
    )
    with pytest.raises(ValueError, match="no option"):
        state["c"]


def test_unconditional_numbers_have_no_beginning_of_sequence(client):
    """The extra calls hold the option's ids and nothing else."""
    choose(
        client, "Q", ["yes", "n"], choices_method=sgl.unconditional_likelihood_normalized
    ).sync()
    bare = [request for request in client.requests if request.add_bos == "never"]

    assert [request.parts[0].token_ids for request in bare] == [tuple(b"yes")]


def test_options_are_scored_together(client):
    """One call for the prompt with all of them, and nothing generated."""
    choose(client, "Q", OPTIONS).sync()
    (request,) = client.requests

    assert request.options == tuple(OPTIONS)
    assert request.sampling.max_new_tokens == 0


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_of_equal_options_the_first_wins(client, rule):
    """Numbers of equal texts are equal, so no rule prefers the later one."""
    for number in range(10):
        options = ["no", "yes", "no", "yes"]
        state = choose(client, f"{number}?", options, choices_method=rule)

        assert state.get_meta_info("c")["choice_index"] == options.index(state["c"])


class Forgetful(FakeClient):
    """Does not know options."""

    def submit(self, request):
        """A ticket for the prompt alone."""
        return super().submit(replace(request, options=()))


def test_an_engine_that_does_not_score_options_is_an_error():
    """The option that comes first is not taken for the best."""
    with pytest.raises(BackendFailed, match="score every option"):
        choose(Forgetful(), "Q", OPTIONS)["c"]
