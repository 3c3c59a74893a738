"""Requests as arguments of OpenAI's `create`, for chat and for completions."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mmserve.core import (
    BadRequest,
    Constraint,
    Request,
    SamplingParams,
    Turn,
    UnsupportedByBackend,
)
from mmserve.lang.backends.abilities import COMMON, Abilities
from mmserve.lang.backends.completion_prompt import PromptWriter
from mmserve.lang.backends.messages import messages_of
from mmserve.lang.backends.typed_answers import typed_stops

__all__ = ["EXTENSIONS", "Form", "abilities_of", "checked_extensions"]

_OUTPUT_NUMBERS = {"return_logprob", "top_logprobs_num", "return_text_in_logprobs"}
_BOTH = COMMON | _OUTPUT_NUMBERS | {"n", "seed", "frequency_penalty", "presence_penalty"}
_TYPES = frozenset({"int", "float", "str", "bool"})
_REASONING = ("o1", "o3", "o4", "gpt-5")

_EXTRAS: dict[str, Callable[[Request], object]] = {
    "cache_salt": lambda request: request.cache_salt or None,
    "priority": lambda request: request.priority or None,
    "stop_token_ids": lambda request: list(request.sampling.stop_token_ids) or None,
    "min_tokens": lambda request: request.sampling.min_new_tokens or None,
    "ignore_eos": lambda request: request.sampling.ignore_eos or None,
    "top_k": lambda request: _unless(request.sampling.top_k, -1),
    "min_p": lambda request: _unless(request.sampling.min_p, 0.0),
    "repetition_penalty": lambda request: _unless(request.sampling.repetition_penalty, 1.0),
}
_CONSTRAINTS = ("regex", "ebnf", "json_schema")
_BOUNDS = ("max_pixels", "min_pixels")

EXTENSIONS = frozenset({*_EXTRAS, *_CONSTRAINTS, *_BOUNDS})
"""Parameters that a server may take beyond OpenAI's; all under the names of our own server."""


def checked_extensions(names: Sequence[str]) -> frozenset[str]:
    """The names as a set. Raises BadRequest for one that no server takes. Pure."""
    given = (names,) if isinstance(names, str) else tuple(names)
    for name in given:
        if name not in EXTENSIONS:
            message = f"extensions holds {name!r}, which is none"
            hint = f"allowed are {', '.join(sorted(EXTENSIONS))}"
            raise BadRequest(message, field="extensions", reason="unknown", hint=hint)
    return frozenset(given)


def abilities_of(
    *, is_chat: bool, has_template: bool, has_frames: bool, extensions: frozenset[str]
) -> Abilities:
    """What the chat API, or the completions API, does with these extensions. Pure."""
    has_regex = "regex" in extensions
    parameters = _BOTH | extensions | ({"json_schema"} if is_chat else {"dtype"})
    if has_regex:
        parameters |= {"dtype"}
    if is_chat:
        return Abilities(
            parameters=parameters,
            dtypes=_TYPES if has_regex else frozenset(),
            has_clips=has_frames,
        )
    return Abilities(
        parameters=parameters,
        dtypes=_TYPES if has_regex else frozenset({"int", "str"}),
        has_pictures=False,
        has_turns=has_template,
        has_free_text=True,
        has_partial_turns=True,
        has_raw=True,
        has_choices=True,
    )


@dataclass(frozen=True, slots=True)
class Form:
    """How one backend words its calls; `writer` is None for the chat API."""

    backend: str
    model: str
    extensions: frozenset[str]
    writer: PromptWriter | None = None

    def arguments(self, request: Request) -> dict[str, object]:
        """Keyword arguments of `create` for a streamed call.

        Raises UnsupportedByBackend for a prompt that the API cannot take, and MediaRefused.
        """
        sampling = request.sampling
        if sampling.max_new_tokens == 0:
            raise self._refused("max_tokens", "a call that generates nothing")
        words: dict[str, object] = {
            "model": self.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._sampling(sampling),
            **self._numbers(sampling),
        }
        extra = {name: _EXTRAS[name](request) for name in sorted(self.extensions & {*_EXTRAS})}
        extra = {name: value for name, value in extra.items() if value is not None}
        words |= self._shape(sampling.constraint, extra)
        if extra:
            words["extra_body"] = extra
        if self.writer is None:
            return words | {"messages": self._messages(request)}
        return words | {"prompt": self._prompt(request)}

    def is_typed(self, constraint: Constraint | None) -> bool:
        """Whether an answer's shape is seen to here, because the API enforces none. Pure."""
        is_pattern = constraint is not None and constraint.kind == "regex"
        return is_pattern and "regex" not in self.extensions

    def _messages(self, request: Request) -> list[dict[str, object]]:
        last = request.parts[-1]
        is_answer = isinstance(last, Turn) and last.is_open and last.role == "assistant"
        if not is_answer or (isinstance(last, Turn) and last.parts):
            raise self._refused("gen", "a gen later in its turn, or in another's turn")
        return messages_of(request.parts, self.backend)

    def _prompt(self, request: Request) -> str:
        assert self.writer is not None  # noqa: S101  the caller has checked
        prompt = self.writer.text(request.parts)
        if self.is_typed(request.sampling.constraint):
            prompt += typed_stops(request.sampling).opening
        return prompt

    def _sampling(self, sampling: SamplingParams) -> dict[str, object]:
        words: dict[str, object] = {}
        is_reasoning = self.model.removeprefix("ft:").startswith(_REASONING)
        if sampling.max_new_tokens is not None:
            word = "max_completion_tokens" if is_reasoning else "max_tokens"
            words[word] = sampling.max_new_tokens
        # Defaults are told, since a server may have others; reasoning models refuse the words.
        if sampling.temperature != 1 or not is_reasoning:
            words["temperature"] = sampling.temperature
        if sampling.top_p != 1 or not is_reasoning:
            words["top_p"] = sampling.top_p
        rest = {
            "n": _unless(sampling.n, 1),
            "seed": sampling.seed,
            "frequency_penalty": _unless(sampling.frequency_penalty, 0.0),
            "presence_penalty": _unless(sampling.presence_penalty, 0.0),
            "stop": list(self._stops(sampling)) or None,
            "logit_bias": {str(token): bias for token, bias in sampling.logit_bias} or None,
        }
        return words | {name: value for name, value in rest.items() if value is not None}

    def _stops(self, sampling: SamplingParams) -> Sequence[str]:
        if self.is_typed(sampling.constraint):
            return typed_stops(sampling).stops
        return sampling.stop

    def _numbers(self, sampling: SamplingParams) -> dict[str, object]:
        if not sampling.return_logprobs:
            return {}
        if self.writer is not None:
            return {"logprobs": sampling.top_logprobs}
        if not sampling.top_logprobs:
            return {"logprobs": True}
        return {"logprobs": True, "top_logprobs": sampling.top_logprobs}

    def _shape(
        self, constraint: Constraint | None, extra: dict[str, object]
    ) -> dict[str, object]:
        if constraint is None or self.is_typed(constraint):
            return {}
        if self.writer is None and constraint.kind == "json_schema":
            schema = json.loads(constraint.value)
            named = {"name": "answer", "strict": True, "schema": schema}
            return {"response_format": {"type": "json_schema", "json_schema": named}}
        if constraint.kind not in self.extensions:
            raise self._refused(constraint.kind, constraint.kind)
        extra[constraint.kind] = constraint.value
        return {}

    def _refused(self, parameter: str, what: str) -> UnsupportedByBackend:
        return UnsupportedByBackend(
            f"{self.backend} cannot serve {what}",
            parameter=parameter,
            backend=self.backend,
            hint="use Engine or RuntimeEndpoint",
        )


def _unless(value: float, default: float) -> float | None:
    return None if value == default else value
