"""Calls that generate nothing, read as a whole; prompts with a text put at their end."""

from __future__ import annotations

import os
from dataclasses import replace

from mmserve.core import (
    Aborted,
    BackendFailed,
    Output,
    Part,
    Request,
    SamplingParams,
    TextPart,
    TokenLogprob,
    TokensPart,
    Turn,
)
from mmserve.lang.backends.port import Call

__all__ = ["continued", "scoring_request", "whole_output", "whole_outputs"]


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
    return whole_outputs(call)[0]


def whole_outputs(call: Call) -> list[Output]:
    """Each sequence of a call as one output, in order; see `whole_output`."""
    news: dict[int, list[Output]] = {}
    for output in call.outputs():
        news.setdefault(output.index, []).append(output)
    if not news:
        raise _no_end()
    return [_whole(news[index]) for index in sorted(news)]


def _whole(outputs: list[Output]) -> Output:
    prompt_logprobs: list[TokenLogprob] = []
    logprobs: list[TokenLogprob] = []
    for output in outputs:
        prompt_logprobs.extend(output.prompt_logprobs or ())
        logprobs.extend(output.logprobs)
    end = outputs[-1]
    if end.finish is None:
        raise _no_end()
    if end.finish.error is not None:
        raise end.finish.error
    if end.finish.reason == "abort":
        message = "the backend aborted the call"
        raise Aborted(message)
    return replace(
        end,
        text="".join(output.text for output in outputs),
        prompt_logprobs=tuple(prompt_logprobs),
        logprobs=tuple(logprobs),
    )


def _no_end() -> BackendFailed:
    return BackendFailed("the backend ended a call without an end", status=None)


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
