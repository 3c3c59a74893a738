"""select on a real model: exact scores, against a reference forward pass by transformers."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
import transformers

import mmserve as sgl
from mmserve.engine import Engine

OPTIONS = ["yes", "the thing in the hand", "no"]
RULES = [
    sgl.token_length_normalized,
    sgl.greedy_token_selection,
    sgl.unconditional_likelihood_normalized,
]
WORDS = ["the", "cat", "and", "ring", "is", "on", "red", "of", "hand", "thin", "then"]


class Reference:
    """Log-probabilities by a plain forward pass."""

    def __init__(self, directory: Path) -> None:
        self._model = transformers.LlavaForConditionalGeneration.from_pretrained(
            directory, dtype=torch.float32
        ).eval()

    def scores(self, prompt_ids: list[int], option_ids: list[int]) -> list[float]:
        """l_j of every token of the option; of all but the first without a prompt."""
        ids = torch.tensor([prompt_ids + option_ids])
        with torch.no_grad():
            logprobs = self._model(input_ids=ids).logits[0].log_softmax(-1)
        first = max(len(prompt_ids), 1)
        return [float(logprobs[k - 1, ids[0, k]]) for k in range(first, ids.shape[1])]


@pytest.fixture(scope="module")
def reference(tiny_directory: Path) -> Reference:
    """The same checkpoint in transformers."""
    return Reference(tiny_directory)


def option_ids(engine: Engine, prompt: str, option: str) -> tuple[list[int], list[int]]:
    """The prompt's ids, and the option's by the language's rule."""
    before = engine.tokenize(prompt, add_special_tokens=True)
    joint = engine.tokenize(prompt + option, add_special_tokens=True)
    if joint[: len(before)] == before and len(joint) > len(before):
        return before, joint[len(before) :]
    return before, engine.tokenize(option)


def expected(rule, reference: Reference, engine: Engine, prompt: str, options: list[str]):
    """The rule's choice on the reference's numbers, and the numbers."""
    pairs = [option_ids(engine, prompt, option) for option in options]
    rows = [reference.scores(before, ids) for before, ids in pairs]
    alone = [[0.0, *reference.scores([], ids)] for _, ids in pairs]
    decision = rule(
        choices=options,
        normalized_prompt_logprobs=[sum(row) / len(row) for row in rows],
        input_token_logprobs=[[[value, 0, None] for value in row] for row in rows],
        output_token_logprobs=[[] for _ in rows],
        unconditional_token_logprobs=[[[value, 0, None] for value in row] for row in alone],
    )
    return decision.decision, rows


def choose(backend, prompt: str, options: list[str], rule=sgl.token_length_normalized):
    """Run one select after a bare prompt."""

    @sgl.function
    def program(s):
        s += prompt + sgl.select("c", options, choices_method=rule)

    return program.run(backend=backend)


def numbers(state) -> list[list[float]]:
    """The scores a select reports."""
    return [
        [entry[0] for entry in row] for row in state.get_meta_info("c")["input_token_logprobs"]
    ]


def close(first: list[list[float]], second: list[list[float]]) -> bool:
    """Equal within a thousandth, and of equal lengths."""
    return [len(row) for row in first] == [len(row) for row in second] and all(
        abs(a - b) < 1e-3
        for one, two in zip(first, second, strict=True)
        for a, b in zip(one, two, strict=True)
    )


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_the_choice_is_the_rules_on_reference_numbers(backend, engine, reference, rule):
    """For random prompts and options of one to many tokens; scores agree within 1e-3."""
    rng = random.Random(rule.name)
    for _ in range(17):
        prompt = " ".join(rng.choices(WORDS, k=rng.randint(1, 8)))
        state = choose(backend, prompt, OPTIONS, rule)
        winner, rows = expected(rule, reference, engine, prompt, OPTIONS)

        assert close(numbers(state), rows)
        assert state["c"] == winner


@pytest.mark.parametrize(
    ("prompt", "options"),
    [("t", ["he", "do"]), ("the", ["n", "r"]), (" th", ["e", "ing"]), ("un", ["happy", "do"])],
)
def test_a_prompt_that_would_merge_keeps_its_tokens(
    backend, engine, reference, prompt, options
):
    """Scores cover exactly the option's tokens; warm and cold agree."""
    cold = numbers(choose(backend, prompt, options))
    warm = numbers(choose(backend, prompt, options))
    _, rows = expected(sgl.token_length_normalized, reference, engine, prompt, options)

    assert close(cold, rows)
    assert close(cold, warm)


def test_a_choice_about_a_picture_follows_the_picture(backend, red, blue):
    """Another picture changes the scores."""

    @sgl.function
    def program(s, picture):
        s += sgl.user(sgl.image(picture) + "Which?") + sgl.assistant(sgl.select("c", OPTIONS))

    rows = [numbers(program.run(picture, backend=backend)) for picture in (red, blue, red)]

    assert close(rows[0], rows[2])
    assert not close(rows[0], rows[1])
