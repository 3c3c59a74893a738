"""The body of the native `/generate` as core requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from mmserve.core import BadRequest, ModelInfo, Request, SamplingParams
from mmserve.server.clients import Caller, client_of
from mmserve.server.fields import (
    Body,
    Check,
    anything,
    boolean,
    integer,
    list_of,
    short_text,
    text,
    word,
    wrong,
)
from mmserve.server.media import FindFile, MediaDefaults, no_file
from mmserve.server.native.prompts import NativePrompts, media_kinds, take_prompts
from mmserve.server.sampling import (
    NATIVE_NAMES,
    build_sampling,
    take_sampling,
    take_text_constraint,
)

__all__ = ["OFF_ONLY", "NativeCall", "Scores", "native_call"]

T = TypeVar("T")
_TOP_LOGPROBS = integer(0, 64)
_START = integer(-1, 2**31)
_PRIORITY = integer(-(2**31), 2**31)
_KINDS = {"image": "image", "multi-images": "image", "video": "video"}
OFF_ONLY = (
    "lora_path",
    "lora_id",
    "session_params",
    "custom_logit_processor",
    "return_hidden_states",
    "return_routed_experts",
    "input_embeds",
    "audio_data",
    "background",
    "no_logs",
    "data_parallel_rank",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Which log-probabilities one prompt's answer reports.

    `is_scoring`: nothing is generated, so the format's table of positions has its own rule, and
    the answer reports one more row, the token that would come next.
    """

    is_wanted: bool = False
    start: int = -1
    top: int = 0
    is_scoring: bool = False

    @property
    def prompt_from(self) -> int | None:
        """Position from which the engine must report the prompt, or None. Pure."""
        if not self.is_wanted or (self.start < 0 and not self.is_scoring):
            return None
        return max(self.start, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeCall:
    """A native request that has been read and checked."""

    requests: tuple[Request, ...]
    scores: tuple[Scores, ...]
    rids: tuple[str, ...] | str | None
    choices: tuple[str, ...] | None
    is_batch: bool
    is_stream: bool
    is_incremental: bool
    with_text: bool
    return_token_ids: bool

    @property
    def num_samples(self) -> int:
        """Answers to each prompt. Pure."""
        return self.requests[0].sampling.n


@dataclass(frozen=True, slots=True)
class _Shared:
    """What all requests of a call have in common."""

    client: str
    cache_salt: str
    priority: int


def native_call(
    body: Body,
    caller: Caller,
    model: ModelInfo,
    own_spelling: str,
    find: FindFile = no_file,
) -> NativeCall:
    """Read the whole body; `own_spelling` is the model's own placeholder of a picture, or "".

    `find` finds the files it names. Raises BadRequest for what is wrong, unknown or cannot be
    honoured, and NotFound.

    Changes: `body` is used up.
    """
    prompts = take_prompts(body, model, own_spelling, MediaDefaults(find=find))
    num_prompts = len(prompts.parts)
    choices = body.take("choices", list_of(text, most=10_000), None)
    values: Sequence[object] = _each(body, "sampling_params", anything, num_prompts, default={})
    scores = _take_scores(body, num_prompts)
    samplings = []
    for k, value in enumerate(values):
        params, scores[k] = _sampling(value, scores[k], model)
        samplings.append(params if choices is None else replace(params, max_new_tokens=0))
    if len({params.n for params in samplings}) > 1:
        message = "sampling_params ask for different n, one call takes one"
        raise BadRequest(message, field="sampling_params", reason="conflict")
    for field in OFF_ONLY:
        body.neutral(field, allowed=(False,))
    body.neutral("token_ids_logprob", allowed=([],))
    body.take("modalities", lambda value, name: _check_modalities(value, name, prompts), None)
    call = NativeCall(
        requests=_requests(_take_shared(body, caller), prompts, samplings, choices or ()),
        scores=tuple(scores),
        rids=body.take("rid", _rids, None),
        choices=choices,
        is_batch=prompts.is_batch,
        is_stream=body.take("stream", boolean, default=False),
        is_incremental=body.take("incremental", boolean, default=False),
        with_text=body.take("return_text_in_logprobs", boolean, default=False),
        return_token_ids=body.take("return_token_ids", boolean, default=False),
    )
    body.finish()
    _check_call(call)
    return call


def _check_call(call: NativeCall) -> None:
    if isinstance(call.rids, tuple) and len(call.rids) != len(call.requests):
        raise wrong(
            "rid", list(call.rids), f"one id for each of the {len(call.requests)} prompts"
        )
    if call.choices is None:
        return
    if not call.choices or not all(call.choices):
        raise BadRequest("choices needs at least one text, none empty", field="choices")
    is_plain = not (call.is_batch or call.is_stream or call.scores[0].is_wanted)
    sampling = call.requests[0].sampling
    if not is_plain or sampling.n > 1 or sampling.constraint is not None:
        message = "choices takes one prompt, and no n, stream, return_logprob or constraint"
        raise BadRequest(message, field="choices", reason="conflict")


def _take_shared(body: Body, caller: Caller) -> _Shared:
    salt = body.take("cache_salt", short_text, "")
    extra = body.take("extra_key", short_text, "")
    cache_salt = f"{len(salt)}:{salt}{extra}" if extra else salt
    return _Shared(
        client=client_of(caller, cache_salt=cache_salt),
        cache_salt=cache_salt,
        priority=body.take("priority", _PRIORITY, 0),
    )


def _requests(
    shared: _Shared,
    prompts: NativePrompts,
    samplings: Sequence[SamplingParams],
    options: tuple[str, ...],
) -> tuple[Request, ...]:
    return tuple(
        Request(
            request_id="",
            parts=parts,
            sampling=sampling,
            client=shared.client,
            cache_salt=shared.cache_salt,
            priority=shared.priority,
            options=options,
        )
        for parts, sampling in zip(prompts.parts, samplings, strict=True)
    )


def _take_scores(body: Body, num_prompts: int) -> list[Scores]:
    wanted = _each(body, "return_logprob", boolean, num_prompts, default=False)
    starts = _each(body, "logprob_start_len", _START, num_prompts, default=-1)
    tops = _each(body, "top_logprobs_num", _TOP_LOGPROBS, num_prompts, default=0)
    return [
        Scores(is_wanted=is_wanted, start=start, top=top)
        for is_wanted, start, top in zip(wanted, starts, tops, strict=True)
    ]


def _sampling(value: object, scores: Scores, model: ModelInfo) -> tuple[SamplingParams, Scores]:
    body = Body(value, "sampling_params")
    values = take_sampling(body, NATIVE_NAMES)
    body.neutral("spaces_between_special_tokens", allowed=(True,))
    values["constraint"] = take_text_constraint(body)
    body.finish()
    is_scoring = scores.is_wanted and values.get("max_new_tokens") == 0
    scores = replace(scores, is_scoring=is_scoring)
    if scores.is_wanted:
        values["return_logprobs"] = True
        values["top_logprobs"] = scores.top
        values["prompt_logprobs_from"] = scores.prompt_from
    params = build_sampling(values, NATIVE_NAMES, model)
    return params, scores


def _check_modalities(value: object, name: str, prompts: NativePrompts) -> None:
    named = {_KINDS[kind] for kind in list_of(word(*_KINDS))(value, name)}
    held = {kind for parts in prompts.parts for kind in media_kinds(parts)}
    if named != held:
        words = " and ".join(sorted(held)) or "no media"
        message = f"{name} does not agree with the media of the prompts, which hold {words}"
        raise BadRequest(message, field=name, reason="conflict")


def _rids(value: object, name: str) -> tuple[str, ...] | str:
    if not isinstance(value, str | list):
        raise wrong(name, value, "a string or a list of strings")
    return value if isinstance(value, str) else list_of(short_text)(value, name)


def _each(body: Body, field: str, check: Check[T], num_prompts: int, default: T) -> Sequence[T]:
    """A value for each prompt: the field holds one for all, or a list of one for each."""

    def check_each(value: object, name: str) -> list[T]:
        if not isinstance(value, list):
            return [check(value, name)] * num_prompts
        if len(value) != num_prompts:
            raise wrong(name, value, f"one entry for each of the {num_prompts} prompts")
        return [
            default if item is None else check(item, f"{name}[{k}]")
            for k, item in enumerate(value)
        ]

    return body.take(field, check_each, [default] * num_prompts)
