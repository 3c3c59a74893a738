"""What chat and plain completions have in common: model, streaming, identity, reports."""

from __future__ import annotations

from dataclasses import dataclass

from mmserve.core import BadRequest
from mmserve.server.clients import Caller, client_of
from mmserve.server.fields import Body, boolean, integer, short_text, text

__all__ = ["TIERS", "Envelope", "take_envelope", "take_handling"]

TIERS = ("auto", "default")
_PRIORITY = integer(-(2**31), 2**31)


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """How a request is handled and answered, whatever it asks the model.

    `usage_in_all`: each chunk tells the usage so far, not the last alone.
    """

    is_stream: bool
    include_usage: bool
    usage_in_all: bool
    return_timing: bool
    return_token_ids: bool
    client: str
    cache_salt: str
    priority: int
    rid: str | None


def take_envelope(body: Body, caller: Caller) -> Envelope:
    """Read the common fields; who the client is follows from `caller`, `user` and the salt.

    Changes: the fields count as known.
    """
    is_stream = body.take("stream", boolean, default=False)
    options = body.take("stream_options", _stream_options, None)
    if options is not None and not is_stream:
        message = "stream_options is given without stream: true"
        raise BadRequest(message, field="stream_options", reason="conflict")
    body.neutral("store", allowed=(False,))
    body.take("metadata", Body, None)
    body.neutral("prompt_cache_key")
    body.neutral("safety_identifier")
    body.neutral("service_tier", allowed=TIERS)
    user = body.take("user", short_text, "")
    return take_handling(
        body, caller, user=user, is_stream=is_stream, usage=options or (False, False)
    )


def take_handling(
    body: Body,
    caller: Caller,
    *,
    user: str,
    is_stream: bool,
    usage: tuple[bool, bool] = (False, False),
) -> Envelope:
    """The fields that no surface has otherwise, beside what its own say of these three.

    `usage` says whether a stream tells it at its end, and in each chunk, too.

    Changes: the fields count as known.
    """
    cache_salt = body.take("cache_salt", short_text, "")
    return Envelope(
        is_stream=is_stream,
        include_usage=usage[0],
        usage_in_all=all(usage),
        return_timing=body.take("return_timing", boolean, default=False),
        return_token_ids=body.take("return_token_ids", boolean, default=False),
        client=client_of(caller, user=user, cache_salt=cache_salt),
        cache_salt=cache_salt,
        priority=body.take("priority", _PRIORITY, 0),
        rid=body.take("rid", text, None),
    )


def _stream_options(value: object, name: str) -> tuple[bool, bool]:
    """Whether usage is told at all, and whether in each chunk."""
    options = Body(value, name)
    include_usage = options.take("include_usage", boolean, default=False)
    options.neutral("include_obfuscation", allowed=(False,))
    is_continuous = options.take("continuous_usage_stats", boolean, default=False)
    options.finish()
    return include_usage, is_continuous
