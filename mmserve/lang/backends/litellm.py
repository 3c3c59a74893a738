"""Any chat API that the `litellm` package reaches, by OpenAI's messages."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from mmserve.core import (
    MissingExtra,
    Output,
    Request,
    SamplingParams,
    TextPart,
    Turn,
)
from mmserve.lang.backends.abilities import COMMON, Abilities
from mmserve.lang.backends.answer_text import OwedSpace, space_at_end
from mmserve.lang.backends.api_call import ApiCall
from mmserve.lang.backends.black_box import BlackBox
from mmserve.lang.backends.messages import messages_of
from mmserve.lang.backends.openai_stream import outputs_of

__all__ = ["LiteLLM"]

_NUM_RETRIES = 2
_GRANTED = {
    "n": "n",
    "seed": "seed",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "response_format": "json_schema",
}
"""The package's name of a parameter that not every API takes -> the language's."""


class LiteLLM(BlackBox):
    """Answers by the chat API of whichever provider a model's name begins with.

    Args:
        model_name: as the package names it, such as "openai/gpt-4o" or "anthropic/claude-...".
        partial_turns: the provider continues a turn of the assistant that has begun; it is
            sent with `prefix`, as the package wants it.
        frames: clips are sent as pictures of their frames.
        **client: goes to each call: `api_key`, `api_base`, `timeout`, `max_retries`, ...

    The package says which of `n`, `seed`, the penalties and `json_schema` the provider takes;
    the rest is refused. `token_usage` adds up what the API counted. Raises MissingExtra without
    the package. Changes: the package's hints on errors are not printed.

    The package fetches its list of models from the network when it is imported, unless
    LITELLM_LOCAL_MODEL_COST_MAP is "True" in the environment.
    """

    def __init__(
        self,
        model_name: str,
        *,
        partial_turns: bool = False,
        frames: bool = False,
        **client: Any,  # noqa: ANN401  the package's own parameters
    ) -> None:
        self._package = _package()
        self._num_retries = int(client.pop("max_retries", _NUM_RETRIES))
        self._client = client
        provider = client.get("custom_llm_provider")
        granted = self._package.get_supported_openai_params(
            model=model_name, custom_llm_provider=provider
        )
        granted = frozenset(granted or ())
        # A default is told, because a provider may have another. Anthropic has the same, and
        # some of its models refuse the word.
        self._tells_temperature = "temperature" in granted and "claude" not in model_name
        taken = {word for name, word in _GRANTED.items() if name in granted}
        abilities = Abilities(
            parameters=COMMON | taken, has_clips=frames, has_partial_turns=partial_turns
        )
        super().__init__(model_name, abilities)

    def server_info(self) -> dict[str, object]:
        """The model's name and the address, if one was given."""
        return {"model": self._model, "base_url": self._client.get("api_base")}

    def outputs_of_call(self, call: ApiCall, request: Request) -> Iterator[Output]:
        """See `BlackBox`."""
        started_s = time.monotonic()
        words = self._arguments(request)
        last = _open_turn(request)
        space = space_at_end(last) if last is not None else ""
        owed = [OwedSpace(space) for _ in range(request.sampling.n)]

        def post() -> Iterable[Any]:
            reply = self._package.completion(**words, **self._client)
            if request.sampling.n > 1:  # the package's streams tell the end of one answer only
                return [_chunk(reply)]
            return _Stream(reply)

        with call.open(post, self._num_retries) as chunks:
            outputs = outputs_of(chunks, request, self.token_usage, self.name, started_s)
            for output in outputs:
                yield replace(output, text=owed[output.index].feed(output.text))

    def _arguments(self, request: Request) -> dict[str, object]:
        if request.sampling.max_new_tokens == 0:
            raise self.refused("max_tokens", "a call that generates nothing")
        last = _open_turn(request)
        if last is None:
            raise self.refused("gen", "a gen outside a turn of the assistant")
        last = _stripped(last)
        messages = messages_of((*request.parts[:-1], last), self.name)
        if last.parts:
            if not self._abilities.has_partial_turns:
                raise self.refused("gen", "a gen later in its turn")
            messages[-1]["prefix"] = True
        return {
            "model": self._model,
            "messages": messages,
            "max_retries": 0,  # a call of ours tries again by itself
            **({"temperature": 1.0} if self._tells_temperature else {}),
            **_values(request.sampling),
        }


def _package() -> Any:  # noqa: ANN401  the package
    try:
        import litellm  # noqa: PLC0415  optional, and slow to import
    except ImportError as error:
        raise MissingExtra(
            "LiteLLM needs the package litellm",
            hint='pip install "mmserve[litellm]"',
            package="litellm",
            extra="litellm",
        ) from error
    litellm.suppress_debug_info = True
    return litellm


def _values(sampling: SamplingParams) -> dict[str, object]:
    """Arguments for how to answer; values that change nothing are left out. Pure."""
    default = SamplingParams()
    names = ("n", "seed", "temperature", "top_p", "frequency_penalty", "presence_penalty")
    values = {name: getattr(sampling, name) for name in names}
    words = {name: value for name, value in values.items() if value != getattr(default, name)}
    words["max_tokens"] = sampling.max_new_tokens
    if sampling.stop:
        words["stop"] = list(sampling.stop)
    if sampling.constraint is not None:
        schema = json.loads(sampling.constraint.value)
        named = {"name": "answer", "strict": True, "schema": schema}
        words["response_format"] = {"type": "json_schema", "json_schema": named}
    if sampling.n == 1:
        words |= {"stream": True, "stream_options": {"include_usage": True}}
    return words


def _open_turn(request: Request) -> Turn | None:
    last = request.parts[-1]
    is_answer = isinstance(last, Turn) and last.is_open and last.role == "assistant"
    return last if isinstance(last, Turn) and is_answer else None


def _stripped(turn: Turn) -> Turn:
    """The turn without white space at its end. Pure."""
    pieces = list(turn.parts)
    while pieces and isinstance(last := pieces[-1], TextPart):
        pieces.pop()
        if last.text.strip():
            pieces.append(TextPart(last.text.rstrip()))
            break
    return replace(turn, parts=tuple(pieces))


class _Stream:
    """The package's stream, with the response that cancelling cuts, where it has one."""

    def __init__(self, stream: Any) -> None:  # noqa: ANN401  the package's stream
        self._stream = stream
        self.response = getattr(getattr(stream, "completion_stream", None), "response", None)

    def __iter__(self) -> Iterator[Any]:
        yield from self._stream

    def close(self) -> None:
        """Close the connection. Changes: no more chunks come."""
        self._stream.close()


def _chunk(reply: Any) -> Any:  # noqa: ANN401  the package's reply
    """A reply that is no stream, in the form of a chunk. Pure."""
    choices = [
        SimpleNamespace(
            index=choice.index,
            delta=choice.message,
            finish_reason=choice.finish_reason,
            logprobs=None,
            model_extra=None,
        )
        for choice in reply.choices
    ]
    return SimpleNamespace(usage=getattr(reply, "usage", None), choices=choices)
