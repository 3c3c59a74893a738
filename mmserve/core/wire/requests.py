"""Requests as JSON bodies of `/generate`, in the form with `parts`. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from mmserve.core.request import (
    FramesSource,
    ImagePart,
    MediaSource,
    Part,
    RawPart,
    Request,
    TextPart,
    TokensPart,
    Turn,
    VideoPart,
)
from mmserve.core.sampling import Constraint, SamplingParams

__all__ = ["UrlOf", "first_reported", "generate_body", "wire_part"]

UrlOf = Callable[[MediaSource], str]
"""Gives the address under which a source goes over the wire."""

# Fields of SamplingParams that go over the wire under their own name.
_SAME = (
    "max_new_tokens",
    "min_new_tokens",
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "ignore_eos",
    "skip_special_tokens",
    "no_stop_trim",
    "heal_prompt",
)


def generate_body(request: Request, url_of: UrlOf, *, is_streamed: bool) -> dict[str, object]:
    """The JSON object to post. Calls that generate may be streamed, in increments.

    Pure if `url_of` is, which raises what it raises.
    """
    sampling = request.sampling
    body: dict[str, object] = {"rid": request.request_id}
    body |= _prompt(request, url_of)
    body["sampling_params"] = _sampling(sampling)
    if sampling.return_logprobs:
        body["return_logprob"] = True
        body["return_text_in_logprobs"] = True
        if sampling.prompt_logprobs_from is not None:
            body["logprob_start_len"] = _start_len(sampling)
        if sampling.top_logprobs:
            body["top_logprobs_num"] = sampling.top_logprobs
    if is_streamed and sampling.max_new_tokens != 0:
        body |= {"stream": True, "incremental": True}
    if request.cache_salt:
        body["cache_salt"] = request.cache_salt
    if request.priority:
        body["priority"] = request.priority
    return body


def first_reported(sampling: SamplingParams) -> int:
    """Position of the first prompt token that the server reports for it. Pure."""
    wanted = sampling.prompt_logprobs_from or 0
    return 0 if wanted == 1 and sampling.max_new_tokens == 0 else wanted


def _start_len(sampling: SamplingParams) -> int:
    # Scoring calls report from position L + 1 on, but all positions for L = 0:
    #   wanted   0  1  2  3 ..        generating: L = wanted
    #   L        0  0  1  2 ..
    wanted = sampling.prompt_logprobs_from or 0
    return max(0, wanted - 1) if sampling.max_new_tokens == 0 else wanted


def _prompt(request: Request, url_of: UrlOf) -> dict[str, object]:
    parts = request.parts
    if len(parts) == 1 and isinstance(parts[0], TokensPart) and request.add_bos == "never":
        return {"input_ids": list(parts[0].token_ids)}
    return {"parts": [wire_part(part, url_of) for part in parts]}


def wire_part(part: Part, url_of: UrlOf) -> dict[str, object]:
    """One part of a prompt. Pure if `url_of` is."""
    match part:
        case TextPart(text):
            wire: dict[str, object] = {"text": text}
        case RawPart(text):
            wire = {"raw": text}
        case TokensPart(token_ids):
            wire = {"tokens": list(token_ids)}
        case ImagePart():
            wire = {"image": _image(part, url_of)}
        case VideoPart():
            wire = {"video": _video(part, url_of)}
        case Turn(role, parts, is_open):
            inner = [wire_part(piece, url_of) for piece in parts]
            wire = {"role": role, "parts": inner, "open": is_open}
    return wire


def _image(part: ImagePart, url_of: UrlOf) -> object:
    url = url_of(part.source)
    bounds = _present((("max_pixels", part.max_pixels), ("min_pixels", part.min_pixels)))
    return {"url": url, **bounds} if bounds else url


def _video(part: VideoPart, url_of: UrlOf) -> dict[str, object]:
    options = _present(
        (
            ("num_frames", part.num_frames),
            ("fps", part.fps),
            ("start_s", part.start_s),
            ("end_s", part.end_s),
            ("max_pixels", part.max_pixels),
            ("min_pixels", part.min_pixels),
            ("times_s", part.times_s),
            ("key_frames", part.key_frames or None),
        )
    )
    if isinstance(part.source, FramesSource):
        frames = [url_of(frame) for frame in part.source.frames]
        return {"frames": frames, **options, "fps": part.source.fps}
    return {"url": url_of(part.source), **options}


def _present(items: Iterable[tuple[str, object]]) -> dict[str, object]:
    return {name: value for name, value in items if value is not None}


def _sampling(sampling: SamplingParams) -> dict[str, object]:
    default = SamplingParams()
    fields = {name: getattr(sampling, name) for name in _SAME}
    values = {
        name: value
        for name, value in fields.items()
        if value is not None and (name == "max_new_tokens" or value != getattr(default, name))
    }
    if sampling.stop:
        values["stop"] = list(sampling.stop)
    if sampling.stop_patterns:
        values["stop_regex"] = list(sampling.stop_patterns)
    if sampling.stop_token_ids:
        values["stop_token_ids"] = list(sampling.stop_token_ids)
    if sampling.logit_bias:
        values["logit_bias"] = {str(token): value for token, value in sampling.logit_bias}
    if sampling.seed is not None:
        values["sampling_seed"] = sampling.seed
    return values | _constraint(sampling.constraint)


def _constraint(constraint: Constraint | None) -> dict[str, object]:
    if constraint is None:
        return {}
    is_list = constraint.kind == "choices"
    return {constraint.kind: json.loads(constraint.value) if is_list else constraint.value}
