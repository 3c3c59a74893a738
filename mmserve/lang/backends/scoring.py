"""Exact log-probabilities of options after a prompt.

prompt                 p_0 .. p_{P-1}                computed once
prompt + option        p_0 .. p_{P-1} o_1 .. o_m     if the prompt's tokens stay
prompt, option alone   p_0 .. p_{P-1} o_1 .. o_m     else: the option's own tokens follow
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from mmserve.core import (
    Aborted,
    BackendFailed,
    BadRequest,
    Client,
    Output,
    Part,
    Request,
    SamplingParams,
    TextPart,
    TokenLogprob,
    TokensPart,
    Turn,
)
from mmserve.lang.backends.port import Call, OptionScore, Scores

__all__ = ["PromptCall", "continued", "score_by_calls", "scoring_request", "whole_output"]


class PromptCall(Call, Protocol):
    """A call that also tells its rendered prompt."""

    def prompt_ids(self) -> tuple[int, ...]:
        """Token ids of the prompt. Waits for admission. Raises the refusal."""
        ...


@dataclass(frozen=True, slots=True)
class _Scoring:
    request: Request
    prompt_ids: tuple[int, ...]
    start: Callable[[Request], PromptCall]

    def begin(self, parts: tuple[Part, ...]) -> PromptCall:
        return self.start(scoring_request(self.request, parts, len(self.prompt_ids)))

    def keeps_prompt(self, call: PromptCall) -> bool:
        num_tokens = len(self.prompt_ids)
        try:
            ids = call.prompt_ids()
        except BadRequest as error:
            if error.fields.get("field") != "logprob_start_len":
                raise
            return False  # tokens merged: together they are fewer than the prompt's own
        return len(ids) > num_tokens and ids[:num_tokens] == self.prompt_ids


def score_by_calls(
    client: Client,
    request: Request,
    options: Sequence[str],
    start: Callable[[Request], PromptCall],
) -> Scores:
    """Score `options` after the prompt of `request`, which generates nothing.

    `start` hands a request in. Raises what the calls raise. Cost: one call for the prompt, one
    per option, all options at once; an option whose joint tokenisation moves the prompt's
    tokens costs a second one.
    """
    prompt = start(request)
    scoring = _Scoring(request, prompt.prompt_ids(), start)
    end = whole_output(prompt)
    calls = [scoring.begin(continued(request.parts, option)) for option in options]
    for index, option in enumerate(options):
        if not scoring.keeps_prompt(calls[index]):
            calls[index].cancel()
            own_ids = TokensPart(tuple(client.tokenize(option)))
            calls[index] = scoring.begin((*request.parts, own_ids))
    return Scores(end, tuple(_score_of(whole_output(call)) for call in calls))


def scoring_request(request: Request, parts: tuple[Part, ...], first: int) -> Request:
    """A request that reports `parts`' log-probabilities from position `first` on. Pure."""
    sampling = SamplingParams(
        max_new_tokens=0, temperature=0.0, return_logprobs=True, prompt_logprobs_from=first
    )
    is_bare = len(parts) == 1 and isinstance(parts[0], TokensPart)
    return replace(
        request,
        request_id=os.urandom(12).hex(),
        parts=parts,
        sampling=sampling,
        add_bos="never" if is_bare else request.add_bos,
    )


def whole_output(call: Call) -> Output:
    """A call of one sequence as one output: its end, with all text. Raises failures."""
    prompt_logprobs: list[TokenLogprob] = []
    logprobs: list[TokenLogprob] = []
    text, end = "", None
    for output in call.outputs():
        text += output.text
        prompt_logprobs.extend(output.prompt_logprobs or ())
        logprobs.extend(output.logprobs)
        end = output
    if end is None or end.finish is None:
        message = "the backend ended a call without an end"
        raise BackendFailed(message, status=None)
    if end.finish.error is not None:
        raise end.finish.error
    if end.finish.reason == "abort":
        message = "the backend aborted the call"
        raise Aborted(message)
    return replace(
        end, text=text, prompt_logprobs=tuple(prompt_logprobs), logprobs=tuple(logprobs)
    )


def continued(parts: tuple[Part, ...], text: str) -> tuple[Part, ...]:
    """Parts with `text` at their end, in the open turn if there is one. Pure."""
    last = parts[-1] if parts else None
    if isinstance(last, Turn) and last.is_open:
        inner = _joined(last.parts, text)
        return (*parts[:-1], replace(last, parts=inner))  # type: ignore[arg-type]
    return _joined(parts, text)


def _joined(parts: tuple[Part, ...], option: str) -> tuple[Part, ...]:
    last = parts[-1] if parts else None
    if isinstance(last, TextPart):
        return (*parts[:-1], TextPart(last.text + option))
    return (*parts, TextPart(option))


def _score_of(output: Output) -> OptionScore:
    tokens: tuple[TokenLogprob, ...] = output.prompt_logprobs or ()
    if not tokens or any(token.logprob is None for token in tokens):
        message = "the backend gave no log-probabilities for an option's tokens"
        raise BackendFailed(message, status=None)
    return OptionScore(tokens, output.logprobs)
