"""Choice scores of the embedded model equal brute force through transformers.

200 prompts with pictures, options of one to six tokens, all three rules in turn:

    cold         a namespace of the cache that is new: rule k      every score, the winner
    warm         the same prompt again: rule k + 1                 every score, the winner
    half warm    after a request that shares half: rule k + 2      every score, the winner
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import transformers
from PIL import Image
from support.oracle import png

import mmserve as sgl
from mmserve.core import EngineConfig, ServerConfig
from mmserve.engine import Engine, locate_model
from mmserve.lang import ClientBackend
from mmserve.server import RunningServer
from mmserve.testing import TEST_SEEDS, scene

NUM_PROMPTS = 200
NUM_OVER_HTTP = 40
NUM_PICTURES = 16
TOLERANCE = 1e-3
TIE = 2 * TOLERANCE
RULES = [
    sgl.token_length_normalized,
    sgl.greedy_token_selection,
    sgl.unconditional_likelihood_normalized,
]
WORDS = [
    *("how", "many", "red", "blue", "green", "objects", "are", "there", "is"),
    *("the", "left", "of", "a", "cube", "ball", "cone", "near"),
]
PHRASES = ["The answer is", "I see", "It is a", "", "un", "Yes,", "th"]


@dataclass(frozen=True)
class Case:
    """A prompt, its options and the reference's numbers.

    `scores[k][j]` is the log-probability of token j of option k after the prompt, `alone[k][j]`
    that without a prompt (0 for the first).
    """

    pictures: tuple[int, ...]
    question: str
    begun: str
    options: tuple[str, ...]
    prompt_ids: tuple[int, ...] = ()
    option_ids: tuple[tuple[int, ...], ...] = ()
    scores: tuple[tuple[float, ...], ...] = ()
    alone: tuple[tuple[float, ...], ...] = ()


class Reference:
    """The embedded model in transformers: prompts, ids and log-probabilities of its own."""

    def __init__(self, pictures: list[Image.Image]) -> None:
        path = locate_model("tabletop")
        self._model = transformers.LlavaForConditionalGeneration.from_pretrained(
            path, dtype=torch.float32
        ).eval()
        self._processor = transformers.AutoProcessor.from_pretrained(path, backend="pil")
        self.tokenizer = self._processor.tokenizer
        self._pixels = self._processor.image_processor(pictures, return_tensors="pt")[
            "pixel_values"
        ]
        self._mark = "<image>" * self._model.config.image_seq_length

    def solved(self, cases: list[Case]) -> list[Case]:
        """The cases with ids and numbers, by two forward passes."""
        pairs = [self._ids(case) for case in cases]
        joint = [[*before, *option] for before, options in pairs for option in options]
        shown = [k for case in cases for _ in case.options for k in case.pictures]
        rows = iter(self._logprobs(joint, self._pixels[shown]))
        alone = iter(self._logprobs([option for _, options in pairs for option in options]))
        return [
            replace(
                case,
                prompt_ids=tuple(before),
                option_ids=tuple(map(tuple, options)),
                scores=tuple(tuple(next(rows)[len(before) - 1 :]) for _ in options),
                alone=tuple((0.0, *next(alone)) for _ in options),
            )
            for case, (before, options) in zip(cases, pairs, strict=True)
        ]

    def _ids(self, case: Case) -> tuple[list[int], list[list[int]]]:
        """Ids of the prompt, and of each option by the language's rule."""
        content = [{"type": "image"} for _ in case.pictures]
        text = self._processor.apply_chat_template(
            [{"role": "user", "content": [*content, {"type": "text", "text": case.question}]}],
            add_generation_prompt=True,
        ).replace("<image>", self._mark)
        before = self._encode(text + case.begun)
        options = []
        for option in case.options:
            joint = self._encode(text + case.begun + option)
            keeps = len(joint) > len(before) and joint[: len(before)] == before
            options.append(joint[len(before) :] if keeps else self._encode(option))
        return before, options

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _logprobs(
        self, sequences: list[list[int]], pixels: torch.Tensor | None = None
    ) -> list[list[float]]:
        """Of every token but the first of each sequence, by one padded forward pass."""
        width = max(map(len, sequences))
        ids = torch.zeros(len(sequences), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, sequence in enumerate(sequences):
            ids[row, : len(sequence)] = torch.tensor(sequence)
            mask[row, : len(sequence)] = 1
        extra = {} if pixels is None else {"pixel_values": pixels}
        with torch.inference_mode():
            logits = self._model(input_ids=ids, attention_mask=mask, **extra).logits.double()
        later = ids[:, 1:, None]
        taken = logits[:, :-1].log_softmax(-1).gather(-1, later)[..., 0].tolist()
        return [row[: len(s) - 1] for row, s in zip(taken, sequences, strict=True)]


def drawn(rng: random.Random, tokenizer: Any) -> Case:
    """A random case: one or two pictures, options that share beginnings or merge."""
    pictures = tuple(rng.sample(range(NUM_PICTURES), rng.choice([1, 1, 2])))
    question = " ".join(rng.choices(WORDS, k=rng.randint(2, 9))) + "?"
    begun, options = rng.choice(PHRASES), []
    if rng.random() < 0.4:
        word = rng.choice([word for word in WORDS if len(word) > 2])
        cut = rng.randint(1, len(word) - 1)
        begun, options = f"{begun} {word[:cut]}", [word[cut:]]
    while len(options) < rng.randint(2, 4):
        shared = rng.choice(options) if options and rng.random() < 0.5 else ""
        space = rng.choice(["", " "])
        option = shared + space + " ".join(rng.choices(WORDS, k=rng.randint(1, 3)))
        num_tokens = len(tokenizer.encode(option, add_special_tokens=False))
        if option not in options and num_tokens <= 6:
            options.append(option)
    return Case(pictures, question, begun, tuple(options))


@pytest.fixture(scope="module")
def pictures() -> list[Image.Image]:
    """Scenes that the model was not trained on."""
    return [scene(seed).image for seed in list(TEST_SEEDS)[:NUM_PICTURES]]


@pytest.fixture(scope="module")
def cases(pictures: list[Image.Image]) -> list[Case]:
    """Random cases with the reference's numbers."""
    rng, reference = random.Random(4), Reference(pictures)
    unsolved = [drawn(rng, reference.tokenizer) for _ in range(NUM_PROMPTS)]
    return [
        case
        for first in range(0, NUM_PROMPTS, 8)
        for case in reference.solved(unsolved[first : first + 8])
    ]


@pytest.fixture(scope="module")
def tabletop() -> Iterator[Engine]:
    """The embedded model in this process."""
    config = EngineConfig(threads=1, num_slots=32768)
    with Engine.from_config(config) as engine:
        yield engine


@sgl.function
def choose(s, contents, case, rule):
    """The case's select."""
    s += sgl.user_begin()
    for k in case.pictures:
        s += sgl.image(contents[k])
    s += case.question + sgl.user_end() + sgl.assistant_begin() + case.begun
    s += sgl.select("c", list(case.options), choices_method=rule)


@sgl.function
def half(s, contents, case):
    """Another question that begins like the case's."""
    s += sgl.user_begin()
    for k in case.pictures:
        s += sgl.image(contents[k])
    s += case.question[: len(case.question) // 2] + sgl.user_end()
    s += sgl.assistant(sgl.gen("x", max_tokens=2, temperature=0))


def test_the_cases_are_what_they_should_be(cases: list[Case]) -> None:
    """Options of one to six tokens, shared beginnings, two pictures, ends that merge."""
    lengths = {len(ids) for case in cases for ids in case.option_ids}
    num_shared = sum(len({ids[0] for ids in c.option_ids}) < len(c.options) for c in cases)
    num_double = sum(len(case.pictures) == 2 for case in cases)
    num_cut = sum(case.begun[-1:] in "abcdefghijklmnopqrstuvwxyz" for case in cases)

    assert len(cases) == NUM_PROMPTS
    assert {1, 2, 3, 4, 5, 6} <= lengths
    assert min(num_shared, num_double, num_cut) >= 20


@pytest.mark.parametrize("way", ["engine", "endpoint"])
def test_scores_and_winners_are_the_references(
    tabletop: Engine, cases: list[Case], pictures: list[Image.Image], way: str
) -> None:
    """Every log-probability within 1e-3, and the rule's winner, cold, warm and half warm."""
    contents = [png(picture) for picture in pictures]
    assert tabletop.flush_cache(timeout_s=30.0)
    if way == "engine":
        check_all(ClientBackend(tabletop), contents, cases)
        return
    with (
        RunningServer(tabletop, ServerConfig(port=0)) as server,
        sgl.RuntimeEndpoint(server.url) as endpoint,
    ):
        check_all(endpoint, contents, cases[:NUM_OVER_HTTP])


def check_all(backend: Any, contents: list[bytes], cases: list[Case]) -> None:
    """Each case by all rules, in three states of the cache; 20 cases at once."""
    for first in range(0, len(cases), 20):
        numbered = list(enumerate(cases))[first : first + 20]
        for turn in range(3):
            if turn == 2:
                others = [
                    half.run(contents, case, backend=backend, cache_salt=f"{k}")
                    for k, case in numbered
                ]
                assert [other.error() for other in others] == [None] * len(numbered)
            rules = [RULES[(k + turn) % 3] for k, _ in numbered]
            states = [
                choose.run(contents, case, rule, backend=backend, cache_salt=f"{k}")
                for (k, case), rule in zip(numbered, rules, strict=True)
            ]
            for (_, case), rule, state in zip(numbered, rules, states, strict=True):
                check(case, rule, state, is_cold=turn == 0)


def check(case: Case, rule: Any, state: sgl.ProgramState, *, is_cold: bool) -> None:
    """One choice against the reference's numbers."""
    meta = state.get_meta_info("c")
    entries = meta["input_token_logprobs"]
    means = [sum(row) / len(row) for row in case.scores]

    assert meta["prompt_tokens"] == len(case.prompt_ids)
    assert (meta["cached_tokens"] == 0) == is_cold
    assert [[entry[1] for entry in row] for row in entries] == list(map(list, case.option_ids))
    near([[entry[0] for entry in row] for row in entries], case.scores)
    near([meta["normalized_prompt_logprobs"]], [means])
    if rule is sgl.unconditional_likelihood_normalized:
        alone = meta["unconditional_token_logprobs"]
        near([[entry[0] for entry in row] for row in alone], case.alone)
        near([meta["normalized_unconditional_prompt_logprobs"]], [gains(case)])
    assert state["c"] == case.options[meta["choice_index"]]
    assert meta["choice_index"] in winners(case, rule), (case, meta)


def near(found: Any, wanted: Any) -> None:
    """Assert equal lengths and values within the tolerance."""
    assert [len(row) for row in found] == [len(row) for row in wanted]
    for row, right in zip(found, wanted, strict=True):
        assert all(abs(a - b) < TOLERANCE for a, b in zip(row, right, strict=True))


def gains(case: Case) -> list[float]:
    """The third rule's numbers."""
    return [
        (sum(row) - sum(alone)) / len(row)
        for row, alone in zip(case.scores, case.alone, strict=True)
    ]


def winners(case: Case, rule: Any) -> list[int]:
    """The rule's winner on the reference's numbers; more than one where they nearly tie."""
    if rule is not sgl.greedy_token_selection:
        means = [sum(row) / len(row) for row in case.scores]
        values = means if rule is sgl.token_length_normalized else gains(case)
        return [k for k, value in enumerate(values) if value > max(values) - TIE]
    alive = list(range(len(case.options)))
    for column in range(max(map(len, case.scores))):
        cells = {k: cell(case, k, column) for k in alive}
        best = max(value for value, _ in cells.values())
        close = [k for k in alive if cells[k][0] > best - TIE]
        if len({cells[k][1] for k in close}) > 1:
            return close  # two different tokens nearly tie: either may win
        alive = close
    return alive[:1]


def cell(case: Case, option: int, column: int) -> tuple[float, object]:
    """M[option, column], and what it is the number of: equal things must have equal numbers."""
    row, ids = case.scores[option], case.option_ids[option]
    if column < len(row):
        return row[column], ids[: column + 1]
    return sum(row) / len(row), ids
