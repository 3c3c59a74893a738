"""Rules that pick one option from the log-probabilities of all.

l_j is the log-probability of token j of an option after the prompt and the earlier tokens.

    options   tokens        l               rule: mean of l
    "yes"     [yes]         -0.2            -0.20   <- largest
    "maybe"   [may, be]     -1.9 -0.1       -1.00
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

__all__ = [
    "ChoicesDecision",
    "ChoicesMethod",
    "ChoicesRule",
    "Entry",
    "greedy_token_selection",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
    "with_shared_numbers",
]

Entry = list[object]  # [logprob or None, token id, text or None]


@dataclass(frozen=True, slots=True)
class ChoicesDecision:
    """The option taken, and what the rule wants to be reported."""

    decision: str
    meta_info: dict[str, object] | None = None


class ChoicesMethod(Protocol):
    """A rule; lists have one item per option.

    A rule whose `requires_unconditional_logprobs` is true also gets the log-probabilities of
    the options' tokens with nothing before them.
    """

    def __call__(
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[list[Entry]],
        output_token_logprobs: list[list[Entry]],
        unconditional_token_logprobs: list[list[Entry]] | None = None,
    ) -> ChoicesDecision:
        """Decide. Pure."""
        ...


@dataclass(frozen=True, slots=True)
class _Scores:
    choices: list[str]
    means: list[float]
    tokens: list[list[Entry]]
    unconditional: list[list[Entry]] | None


@dataclass(frozen=True, slots=True)
class ChoicesRule:
    """A named rule of the language."""

    name: str
    decide: Callable[[_Scores], ChoicesDecision] = field(repr=False)
    requires_unconditional_logprobs: bool = False

    def __call__(
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[list[Entry]],
        output_token_logprobs: list[list[Entry]],  # noqa: ARG002  a rule may look at it, ours do not
        unconditional_token_logprobs: list[list[Entry]] | None = None,
    ) -> ChoicesDecision:
        """Decide by this rule; the first option wins a tie. Pure."""
        return self.decide(
            _Scores(
                choices,
                normalized_prompt_logprobs,
                input_token_logprobs,
                unconditional_token_logprobs,
            )
        )


def with_shared_numbers(rows: Sequence[list[Entry]]) -> list[list[Entry]]:
    """The rows, where equal beginnings have equal numbers: those of the first row with them.

    A backend may compute a token that two options share twice, with another last bit. Pure.
    """
    known: dict[tuple[object, ...], Entry] = {}
    shared = []
    for row in rows:
        ids = tuple(entry[1] for entry in row)
        shared.append([known.setdefault(ids[: k + 1], entry) for k, entry in enumerate(row)])
    return shared


def _first_maximum(values: Sequence[float]) -> int:
    return max(range(len(values)), key=lambda index: (values[index], -index))


def _numbers(entries: list[Entry]) -> list[float]:
    return [float(entry[0]) for entry in entries if isinstance(entry[0], (int, float))]


def _by_mean(scores: _Scores) -> ChoicesDecision:
    return ChoicesDecision(scores.choices[_first_maximum(scores.means)])


def _by_greedy(scores: _Scores) -> ChoicesDecision:
    rows = [_numbers(entries) for entries in scores.tokens]
    width = max(len(row) for row in rows)
    matrix = [
        row + [mean] * (width - len(row)) for row, mean in zip(rows, scores.means, strict=True)
    ]
    alive = list(range(len(matrix)))
    for column in range(width):
        best = max(matrix[index][column] for index in alive)
        alive = [index for index in alive if matrix[index][column] == best]
        if len(alive) == 1:
            break
    return ChoicesDecision(scores.choices[alive[0]], {"greedy_logprob_matrix": matrix})


def _by_surprise(scores: _Scores) -> ChoicesDecision:
    if scores.unconditional is None:
        message = "this rule needs the options' unconditional log-probabilities"
        raise ValueError(message)
    corrected = []
    for entries, alone in zip(scores.tokens, scores.unconditional, strict=True):
        conditional = _numbers(entries)
        gains = sum(conditional) - sum(_numbers(alone))
        corrected.append(gains / len(conditional))
    meta: dict[str, object] = {
        "unconditional_token_logprobs": scores.unconditional,
        "normalized_unconditional_prompt_logprobs": corrected,
    }
    return ChoicesDecision(scores.choices[_first_maximum(corrected)], meta)


token_length_normalized = ChoicesRule("token_length_normalized", _by_mean)
greedy_token_selection = ChoicesRule("greedy_token_selection", _by_greedy)
unconditional_likelihood_normalized = ChoicesRule(
    "unconditional_likelihood_normalized", _by_surprise, requires_unconditional_logprobs=True
)
