"""Whether a sequence can be served at all, and how large it may get."""

from __future__ import annotations

import numpy as np

from mmserve.core import BadRequest, ContextTooLong, Prompt
from mmserve.radix import Interner, prefix_keys
from mmserve.sched.sequence import GrowingArray, Sequence, SequenceSpec, first_score

__all__ = ["make_sequence"]


def make_sequence(
    spec: SequenceSpec,
    *,
    arrival: int,
    now_s: float,
    room_tokens: int,
    vocab_size: int,
    interner: Interner,
) -> Sequence:
    """A waiting sequence, its answer cut to `room_tokens` of prompt and answer together.

    Raises:
        BadRequest: the prompt is empty or has a token outside the vocabulary.
        ContextTooLong: no token of an answer would fit.

    Changes: `interner`.
    """
    prompt, params = spec.prompt, spec.sampling
    _check_prompt(prompt, vocab_size)
    num_prompt = prompt.num_tokens
    num_wanted = params.max_new_tokens
    num_least = num_prompt + (0 if num_wanted == 0 else 1)
    if num_least > room_tokens:
        raise _too_long(prompt, num_least, room_tokens)
    room = room_tokens - num_prompt
    return Sequence(
        spec=spec,
        arrival=arrival,
        arrived_s=now_s,
        num_prompt=num_prompt,
        max_new=room if num_wanted is None else min(num_wanted, room),
        tokens=GrowingArray(np.ascontiguousarray(prompt.token_ids, dtype=np.int64)),
        keys=GrowingArray(prefix_keys(prompt, interner)),
        next_score=first_score(spec),
        score_stop=num_prompt,
        num_image=prompt.num_image_tokens,
        num_video=prompt.num_video_tokens,
        end_ids=_end_ids(spec, vocab_size),
        atomic=tuple((span.start, span.end) for span in prompt.spans if span.is_atomic),
    )


def _end_ids(spec: SequenceSpec, vocab_size: int) -> tuple[int, ...]:
    """Under a grammar the model's end tokens always count; ids that no token has never do."""
    ignores_eos = spec.sampling.ignore_eos and spec.matcher is None
    named = (*spec.sampling.stop_token_ids, *(() if ignores_eos else spec.eos_token_ids))
    return tuple(token_id for token_id in named if 0 <= token_id < vocab_size)


def _check_prompt(prompt: Prompt, vocab_size: int) -> None:
    if not prompt.num_tokens:
        raise BadRequest("the prompt has no tokens", field="prompt", reason="empty")
    is_wrong = (prompt.token_ids < 0) | (prompt.token_ids >= vocab_size)
    for span in prompt.spans:  # placeholders, which some models number behind their vocabulary
        is_wrong[span.start : span.end] = False
    if is_wrong.any():
        token_id = int(prompt.token_ids[is_wrong][0])
        message = f"the prompt has token {token_id}, the vocabulary has {vocab_size} tokens"
        raise BadRequest(message, field="input_ids", reason="token_id", token_id=token_id)


def _too_long(prompt: Prompt, num_tokens: int, room_tokens: int) -> ContextTooLong:
    num_media = prompt.num_image_tokens + prompt.num_video_tokens
    num_text = prompt.num_tokens - num_media
    message = (
        f"prompt and one token of answer are {num_tokens} tokens "
        f"({num_text} text, {num_media} media), the limit is {room_tokens}"
    )
    return ContextTooLong(
        message,
        hint="shorten the prompt, or use fewer or smaller pictures",
        tokens=num_tokens,
        limit_tokens=room_tokens,
        text_tokens=num_text,
        media_tokens=num_media,
    )
