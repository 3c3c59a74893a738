"""Anthropic's Messages API as a backend, through the official `anthropic` package.

request -> prompt_of -> POST /v1/messages -> events -> text -> owed space off -> stops -> Output
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from mmserve.core import (
    BackendFailed,
    Finish,
    MissingExtra,
    Output,
    Request,
    SamplingParams,
    Timing,
    Usage,
)
from mmserve.lang.backends.abilities import COMMON, Abilities
from mmserve.lang.backends.answer_text import HeldStops, OwedSpace
from mmserve.lang.backends.anthropic_messages import prompt_of
from mmserve.lang.backends.api_call import ApiCall
from mmserve.lang.backends.black_box import BlackBox

__all__ = ["Anthropic"]

_NUM_RETRIES = 2
_HIGHEST_TEMPERATURE = 1.0
_LENGTH = ("max_tokens", "model_context_window_exceeded")


class Anthropic(BlackBox):
    """Answers by a model of Anthropic.

    Args:
        model_name: as the API names it.
        partial_turns: the model continues a turn of the assistant that has begun. Models since
            Claude Opus 4.6 refuse that, so it is off unless asked for; without it, several
            gens in one turn need `@function(num_api_spec_tokens=k)`.
        frames: clips are sent as pictures of their frames.
        **client: what `anthropic.Anthropic` takes: `api_key`, `base_url`, `timeout`,
            `max_retries`, ...

    `token_usage` counts the tokens of all calls. Sampling values that a program leaves alone
    are not sent, since some models refuse them. Raises MissingExtra without the package. Does
    not connect before the first call.
    """

    def __init__(
        self,
        model_name: str,
        *,
        partial_turns: bool = False,
        frames: bool = False,
        **client: Any,  # noqa: ANN401  the package's own parameters
    ) -> None:
        try:
            import anthropic  # noqa: PLC0415  an optional package
        except ImportError as error:
            raise MissingExtra(
                "Anthropic needs the package anthropic",
                hint='pip install "mmserve[anthropic]"',
                package="anthropic",
                extra="anthropic",
            ) from error
        abilities = Abilities(
            parameters=COMMON | {"top_k"},
            highest_temperature=_HIGHEST_TEMPERATURE,
            has_clips=frames,
            has_partial_turns=partial_turns,
        )
        super().__init__(model_name, abilities)
        self._num_retries = int(client.pop("max_retries", _NUM_RETRIES))
        self._api = anthropic.Anthropic(max_retries=0, **client)

    def server_info(self) -> dict[str, object]:
        """The model's name and the address."""
        return {"model": self._model, "base_url": str(self._api.base_url)}

    def close(self) -> None:
        """Close the connections. Changes: calls under way fail."""
        self._api.close()

    def outputs_of_call(self, call: ApiCall, request: Request) -> Iterator[Output]:
        """See `BlackBox`."""
        if request.sampling.max_new_tokens == 0:
            raise self.refused("max_tokens", "a call that generates nothing")
        prompt = prompt_of(request.parts, self.name)
        if prompt.is_partial and not self._abilities.has_partial_turns:
            raise self.refused("gen", "a gen later in its turn")
        body: dict[str, Any] = {
            "model": self._model,
            "messages": prompt.messages,
            "max_tokens": request.sampling.max_new_tokens,
        }
        if prompt.system:
            body["system"] = prompt.system
        stops = [stop for stop in request.sampling.stop if stop.strip()]
        if stops:
            body["stop_sequences"] = stops
        answer = _Answer(request, prompt.owed)

        def post() -> Any:  # noqa: ANN401  the package's stream
            values = _values(request.sampling)
            return self._api.messages.create(**body, stream=True, extra_body=values)

        try:
            with call.open(post, self._num_retries) as stream:
                yield from answer.outputs(stream)
        finally:
            self.token_usage.add(answer.usage())


def _values(sampling: SamplingParams) -> dict[str, float]:
    """Sampling values that differ from the API's own. Pure."""
    default = SamplingParams()
    names = ("temperature", "top_p", "top_k")
    return {
        name: getattr(sampling, name)
        for name in names
        if getattr(sampling, name) != getattr(default, name)
    }


class _Answer:
    """One answer from its events. Mutable.

    `owed` is white space that the program has already, and that the answer may repeat.
    """

    def __init__(self, request: Request, owed: str) -> None:
        self._request_id = request.request_id
        self._owed = OwedSpace(owed)
        self._blank_stops = HeldStops([s for s in request.sampling.stop if not s.strip()])
        self._counts: dict[str, int] = {}
        self._began = time.monotonic()
        self._first_ms = 0.0

    def outputs(self, events: Iterator[Any]) -> Iterator[Output]:
        """Outputs as text comes, then the end. Raises BackendFailed if there is none."""
        for event in events:
            if event.type == "message_start":
                self._count(event.message.usage)
            elif event.type == "content_block_delta" and event.delta.type == "text_delta":
                text = self._blank_stops.feed(self._owed.feed(event.delta.text))
                if self._blank_stops.matched is not None:
                    yield self._output(text, Finish("stop", self._blank_stops.matched))
                    return
                if text:
                    yield self._output(text, None)
            elif event.type == "message_delta":
                self._count(event.usage)
                if event.delta.stop_reason is not None:
                    yield self._output(self._blank_stops.close(), _finish(event.delta))
                    return
        message = "the API ended a stream early"
        raise BackendFailed(message, status=None)

    def usage(self) -> Usage:
        """Tokens so far. Pure."""
        counts = self._counts
        cached = counts.get("cache_read_input_tokens", 0)
        new = counts.get("input_tokens", 0) + counts.get("cache_creation_input_tokens", 0)
        return Usage(new + cached, counts.get("output_tokens", 0), cached_tokens=cached)

    def _count(self, usage: object) -> None:
        # Later counts are of the whole answer and replace earlier ones; what is not told stays.
        for name in (
            "input_tokens",
            "cache_creation_input_tokens",
            "cache_read_input_tokens",
            "output_tokens",
        ):
            count = getattr(usage, name, None)
            if isinstance(count, int):
                self._counts[name] = count

    def _output(self, text: str, finish: Finish | None) -> Output:
        spent_ms = (time.monotonic() - self._began) * 1000
        self._first_ms = self._first_ms or spent_ms
        timing = Timing(first_token=self._first_ms, total=spent_ms) if finish else None
        return Output(self._request_id, 0, text, (), self.usage(), finish=finish, timing=timing)


def _finish(delta: Any) -> Finish:  # noqa: ANN401  the package's event
    """Why the answer ended. Pure."""
    reason = delta.stop_reason
    if reason == "end_turn":
        return Finish("stop")
    if reason == "stop_sequence":
        return Finish("stop", delta.stop_sequence)
    if reason in _LENGTH:
        return Finish("length")
    message = f"the model did not answer: stop_reason is {reason}"
    return Finish("error", error=BackendFailed(message, status=None, stop_reason=reason))
