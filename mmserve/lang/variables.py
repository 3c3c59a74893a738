"""Answers as they grow, and the variables that hold them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from mmserve.core import Finish, Output, Timing, TokenLogprob, Usage
from mmserve.lang.choices import Entry
from mmserve.lang.parameters import CallOptions

__all__ = ["Answer", "Variable", "logprob_entry"]


class Answer:
    """One sequence of a call: what has come of it so far. Written by the thread of its call."""

    def __init__(self, request_id: str, options: CallOptions) -> None:
        self._request_id = request_id
        self._options = options
        self._logprobs: list[TokenLogprob] = []
        self._prompt_logprobs: list[TokenLogprob] | None = None
        self._timing: Timing | None = None
        self.text = ""
        self.usage = Usage(0)
        self.finish: Finish | None = None

    def add(self, output: Output, text: str) -> None:
        """Take an output, of whose text `text` counts. Changes: the answer."""
        self.text += text
        self.usage = output.usage
        self._logprobs.extend(output.logprobs)
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = [*(self._prompt_logprobs or ()), *output.prompt_logprobs]
        if output.finish is not None:
            self.finish = output.finish
            self._timing = output.timing

    def meta(self) -> dict[str, object]:
        """The meta info of the language; `finish_reason` is None before the end. Pure."""
        usage = self.usage
        meta: dict[str, object] = {
            "id": self._request_id,
            "finish_reason": _finish_reason(self.finish, usage.completion_tokens),
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
            "cached_tokens_details": {
                "text": usage.cached_text_tokens,
                "image": usage.cached_image_tokens,
                "video": usage.cached_video_tokens,
            },
            "image_tokens": usage.image_tokens,
            "video_tokens": usage.video_tokens,
            "num_retractions": usage.num_retractions,
            "forced_tokens": usage.forced_tokens,
        }
        if self._timing is not None:
            meta["e2e_latency"] = self._timing.total / 1000
            meta["timing_ms"] = asdict(self._timing)
        sampling = self._options.call_sampling()
        if sampling.return_logprobs:
            meta |= self._numbers("output", self._logprobs)
        if self._prompt_logprobs is not None and sampling.prompt_logprobs_from is not None:
            meta |= self._numbers("input", self._prompt_logprobs)
        return meta

    def _numbers(self, side: str, logprobs: Sequence[TokenLogprob]) -> dict[str, object]:
        has_text = self._options.return_text_in_logprobs
        entries = [logprob_entry(item, has_text=has_text) for item in logprobs]
        numbers: dict[str, object] = {f"{side}_token_logprobs": entries}
        if self._options.sampling.top_logprobs:
            numbers[f"{side}_top_logprobs"] = [
                [
                    logprob_entry(TokenLogprob(token_id, number, piece), has_text=has_text)
                    for token_id, number, piece in item.top
                ]
                for item in logprobs
            ]
        return numbers


def logprob_entry(item: TokenLogprob, *, has_text: bool) -> Entry:
    """`[logprob, token id, text or None]`. Pure."""
    text = item.piece.decode("utf-8", errors="replace") if has_text else None
    return [item.logprob, item.token_id, text]


def _finish_reason(finish: Finish | None, num_tokens: int) -> dict[str, object] | None:
    if finish is None:
        return None
    if finish.reason == "length":
        return {"type": "length", "length": num_tokens}
    if finish.reason == "stop":
        return {"type": "stop", "matched": finish.matched}
    return {"type": "abort", "message": str(finish.error or "aborted")}


class Variable:
    """A name's value: pending, done or failed. Mutable; guarded by the run's monitor.

    `pieces` are the texts a reader streams; `meta` gives what `get_meta_info` returns;
    `entries` are the children's variables that a join has gathered; `is_open` says that it is
    a scope whose end is not appended yet.
    """

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.pieces: list[str] = []
        self.value: object = None
        self.meta: Callable[[], Any] | None = None
        self.convert: Callable[[str], object] | None = None
        self.entries: list[Variable | None] | None = None
        self.is_open = False
        self.is_done = False
        self.error: BaseException | None = None

    @property
    def is_settled(self) -> bool:
        """Whether reading it no longer waits."""
        return self.is_done or self.error is not None

    def set(self, value: object) -> None:
        """End it with a value. Changes: the variable."""
        self.value = value
        self.is_done = True

    def fail(self, error: BaseException) -> None:
        """End it with an error, unless it has ended. Changes: the variable."""
        if not self.is_settled:
            self.error = error
