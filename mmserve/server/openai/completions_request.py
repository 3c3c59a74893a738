"""The body of `/v1/completions` as core requests, one for each prompt."""

from __future__ import annotations

from dataclasses import dataclass

from mmserve.core import (
    BadRequest,
    ModelInfo,
    RawPart,
    Request,
    SamplingParams,
    TokensPart,
)
from mmserve.server.calls import MOST_ANSWERS
from mmserve.server.chat.envelope import Envelope, take_envelope
from mmserve.server.chat.request import take_max_tokens
from mmserve.server.clients import Caller
from mmserve.server.fields import Body, boolean, integer, integers, list_of, text, wrong
from mmserve.server.sampling import (
    OPENAI_NAMES,
    AskedForm,
    build_sampling,
    take_openai_constraint,
    take_sampling,
)
from mmserve.server.service import check_model

__all__ = ["CompletionsCall", "PromptPart", "completions_call", "prompts_of"]

PromptPart = RawPart | TokensPart
_DEFAULT_MAX_TOKENS = 16
_TOP_LOGPROBS = integer(0, 64)


@dataclass(frozen=True, slots=True)
class CompletionsCall:
    """A completions request that has been read and checked; one request for each prompt."""

    envelope: Envelope
    prompts: tuple[PromptPart, ...]
    sampling: SamplingParams
    is_echo: bool
    form: AskedForm | None = None

    def requests(self) -> list[Request]:
        """The requests to hand in. Pure."""
        return [
            Request(
                request_id="",
                parts=(prompt,),
                sampling=self.sampling,
                client=self.envelope.client,
                cache_salt=self.envelope.cache_salt,
                priority=self.envelope.priority,
            )
            for prompt in self.prompts
        ]


def completions_call(body: Body, caller: Caller, model: ModelInfo) -> CompletionsCall:
    """Read the whole body. Raises BadRequest for what is wrong, unknown or cannot be honoured.

    Changes: `body` is used up.
    """
    check_model(body, model)
    envelope = take_envelope(body, caller)
    prompts = body.need("prompt", lambda value, name: prompts_of(value, name, model.vocab_size))
    is_echo = body.take("echo", boolean, default=False)
    top_logprobs = body.take("logprobs", _TOP_LOGPROBS, None)
    form = take_openai_constraint(body)
    values = take_sampling(body, OPENAI_NAMES) | {
        "max_new_tokens": take_max_tokens(body, _DEFAULT_MAX_TOKENS),
        "return_logprobs": top_logprobs is not None,
        "top_logprobs": top_logprobs or 0,
        "prompt_logprobs_from": 0 if is_echo and top_logprobs is not None else None,
        "constraint": None if form is None else form.constraint,
    }
    sampling = build_sampling(values, OPENAI_NAMES, model)
    body.neutral("best_of", allowed=(sampling.n,))
    body.neutral("suffix", allowed=("",))
    body.finish()
    return CompletionsCall(envelope, prompts, sampling, is_echo, form)


def prompts_of(value: object, name: str, vocab_size: int) -> tuple[PromptPart, ...]:
    """A text, token ids, or a list of either; 1 to 4096, none of them empty ids. Pure."""
    ids = integers(0, vocab_size - 1)
    if isinstance(value, str):
        return (RawPart(value),)
    if not isinstance(value, list) or not value:
        raise wrong(name, value, "a text, token ids, or a list of either")
    if isinstance(value[0], str):
        texts = list_of(text, most=MOST_ANSWERS)(value, name)
        return tuple(RawPart(words) for words in texts)
    rows = (
        list_of(ids, most=MOST_ANSWERS)(value, name)
        if isinstance(value[0], list)
        else (ids(value, name),)
    )
    for row in rows:
        if not row:
            raise BadRequest(f"{name} holds a prompt of no tokens", field=name, reason="empty")
    return tuple(TokensPart(row) for row in rows)
