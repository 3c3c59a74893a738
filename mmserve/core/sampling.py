"""Sampling parameters, declared once; HTTP fields and language arguments derive from here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any, Literal

from mmserve.core.errors import BadRequest

__all__ = ["Constraint", "ConstraintKind", "SamplingParams", "check_sampling"]

ConstraintKind = Literal["regex", "choices", "json_schema", "json_object", "ebnf"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the whole answer must match.

    `value` is the pattern, the schema as JSON text, the grammar text, or, for `choices`, the
    options as a JSON list; empty for `json_object`.
    """

    kind: ConstraintKind
    value: str


def _number(default: Any, doc: str, low: float, high: float) -> Any:  # noqa: ANN401
    return field(default=default, metadata={"doc": doc, "low": low, "high": high})


def _other(default: Any, doc: str) -> Any:  # noqa: ANN401
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the answer's tokens are chosen, when it ends, and what is reported about them.

    Numeric fields carry their inclusive range in `metadata` (`low`, `high`) and one line of
    documentation (`doc`).
    """

    max_new_tokens: int | None = _number(
        128, "Most tokens to generate; None means up to the context length.", 0, 2**31
    )
    min_new_tokens: int = _number(0, "Tokens to generate before any stop counts.", 0, 2**31)
    n: int = _number(1, "Answers to one prompt.", 1, 128)
    temperature: float = _number(1.0, "0 is greedy.", 0.0, 100.0)
    top_p: float = _number(1.0, "Keep the likeliest tokens that sum to this.", 1e-9, 1.0)
    top_k: int = _number(-1, "Keep this many likeliest tokens; -1 is off.", -1, 2**31)
    min_p: float = _number(
        0.0, "Keep tokens at least this fraction of the likeliest.", 0.0, 1.0
    )
    frequency_penalty: float = _number(0.0, "Subtracted for each earlier use.", -2.0, 2.0)
    presence_penalty: float = _number(
        0.0, "Subtracted once for a token already used.", -2.0, 2.0
    )
    repetition_penalty: float = _number(
        1.0, "Divides the logits of tokens seen in prompt or answer.", 1e-3, 100.0
    )
    stop: tuple[str, ...] = _other((), "Texts that end the answer; not part of it.")
    stop_patterns: tuple[str, ...] = _other(
        (), "Regular expressions that end the answer; the match is not part of it."
    )
    stop_token_ids: tuple[int, ...] = _other((), "Token ids that end the answer.")
    ignore_eos: bool = _other(
        default=False, doc="The model's end tokens do not end the answer."
    )
    logit_bias: tuple[tuple[int, float], ...] = _other(
        (), "(token id, added value in [-100, 100])."
    )
    seed: int | None = _other(None, "Same seed, same answer, whatever else runs.")
    constraint: Constraint | None = field(
        default=None, metadata={"doc": "What the whole answer must match."}
    )
    return_logprobs: bool = _other(default=False, doc="Report log-probabilities of the answer.")
    top_logprobs: int = _number(0, "Also report this many likeliest tokens a position.", 0, 64)
    prompt_logprobs_from: int | None = _number(
        None, "Report log-probabilities of prompt tokens from this position on.", 0, 2**31
    )
    skip_special_tokens: bool = _other(
        default=True, doc="Leave control tokens out of the text."
    )
    no_stop_trim: bool = _other(default=False, doc="Keep the stop text in the answer.")
    heal_prompt: bool = _other(
        default=False,
        doc="Take the prompt's last token back, so that the answer may go on inside of it.",
    )


def check_sampling(params: SamplingParams, vocab_size: int) -> None:
    """Raise BadRequest if a value cannot be served by a model of `vocab_size` tokens. Pure.

    Types are checked too: a wrong one that gets as far as a step would fail all its neighbours.
    """
    for spec in fields(params):
        value = getattr(params, spec.name)
        if "low" in spec.metadata and not (value is None and "None" in str(spec.type)):
            _check_type(spec.name, value, Integral if "int" in str(spec.type) else Real)
            _check_number(spec.name, value, spec.metadata["low"], spec.metadata["high"])
    if params.top_k == 0:
        raise BadRequest(
            "top_k is 0", field="top_k", reason="zero", hint="use -1 to turn it off"
        )
    if params.seed is not None:
        _check_type("seed", params.seed, Integral)
        if not -(2**63) <= params.seed < 2**64:
            raise BadRequest("seed does not fit in 64 bits", field="seed", reason="range")
    most, least = params.max_new_tokens, params.min_new_tokens
    if most is not None and least > most:
        message = f"min_new_tokens is {least}, more than max_new_tokens {most}"
        raise BadRequest(message, field="min_new_tokens", reason="range")
    if params.constraint is not None:
        _check_type("constraint", params.constraint, Constraint)
    elif params.heal_prompt and params.ignore_eos:
        raise BadRequest(
            "heal_prompt and ignore_eos are set, without a constraint they exclude each other",
            field="heal_prompt",
            reason="conflict",
            hint="leave out one of them",
        )
    _check_lists(params, vocab_size)


def _check_lists(params: SamplingParams, vocab_size: int) -> None:
    for name in ("stop", "stop_patterns", "stop_token_ids", "logit_bias"):
        _check_type(name, getattr(params, name), Sequence)
    for name in ("stop", "stop_patterns"):
        for text in getattr(params, name):
            _check_type(name, text, str)
            if not text:
                raise BadRequest(f"{name} holds an empty text", field=name, reason="empty")
    for token_id in params.stop_token_ids:
        _check_type("stop_token_ids", token_id, Integral)
    _check_bias(params.logit_bias, vocab_size)


_WORDS = {
    Constraint: "a Constraint",
    Integral: "a whole number",
    Real: "a number",
    Sequence: "a list",
    str: "a text",
}


def _check_type(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind) or (kind is Sequence and isinstance(value, str)):
        message = f"{name} holds {value!r:.100}, which is not {_WORDS[kind]}"
        raise BadRequest(message, field=name, reason="type")


def _check_number(name: str, value: float, low: float, high: float) -> None:
    if not math.isfinite(value) or not low <= value <= high:
        message = f"{name} is {value}, allowed is {low:g} to {high:g}"
        raise BadRequest(message, field=name, reason="range", value=value, low=low, high=high)


def _check_bias(bias: tuple[tuple[int, float], ...], vocab_size: int) -> None:
    for token_id, value in bias:
        _check_type("logit_bias", token_id, Integral)
        _check_type("logit_bias", value, Real)
        if not 0 <= token_id < vocab_size:
            message = (
                f"logit_bias names token {token_id}, the vocabulary has {vocab_size} tokens"
            )
            raise BadRequest(message, field="logit_bias", reason="token_id", token_id=token_id)
        if not math.isfinite(value) or abs(value) > 100:
            message = f"logit_bias of token {token_id} is {value}, allowed is -100 to 100"
            raise BadRequest(message, field="logit_bias", reason="range", token_id=token_id)
