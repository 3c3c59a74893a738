"""A chat body, and what it has in common with other bodies, as `/openapi.json` tells of it."""

from __future__ import annotations

from mmserve.server.chat.schema_messages import MESSAGES, TOOL_FIELDS
from mmserve.server.describe import schema as shape
from mmserve.server.describe import shared
from mmserve.server.sampling import OPENAI_NAMES

__all__ = ["CHAT", "ENVELOPE", "SAMPLING"]

_MAX_TOKENS = shape.integer(0, 2**31, "Most tokens to generate.")

ENVELOPE: dict[str, shape.Schema] = {
    "model": shared.MODEL,
    "stream": shape.flag("Send the answer as events, as it grows."),
    "stream_options": shape.closed(
        {
            "include_usage": shape.flag("One more event at the end, with the usage."),
            "include_obfuscation": shape.OFF,
            "continuous_usage_stats": shape.flag("Tell the usage so far in every event, too."),
        }
    ),
    "store": shape.OFF,
    "metadata": {"type": "object", "description": "Has no effect here."},
    "service_tier": shape.only("auto", "default"),
    "prompt_cache_key": shape.only(),
    "safety_identifier": shape.only(),
    "user": shared.USER,
    **shared.HANDLING,
}
"""What chat and plain completions have in common."""

_NAMED_SCHEMA = shape.closed(
    {
        "name": shape.text(),
        "description": shape.text(),
        "strict": shape.flag(),
        "schema": {"type": ["object", "boolean"]},
    },
    need=("schema",),
)
RESPONSE_FORMAT = shape.closed(
    {"type": shape.word("text", "json_object", "json_schema"), "json_schema": _NAMED_SCHEMA},
    need=("type",),
    doc="The form of the answer; `json_schema` goes with the type of that name alone.",
)

SAMPLING: dict[str, shape.Schema] = {
    **shared.sampling(OPENAI_NAMES),
    **shared.CONSTRAINTS,
    "response_format": RESPONSE_FORMAT,
    "max_tokens": _MAX_TOKENS,
    "max_completion_tokens": _MAX_TOKENS,
}
"""What both say of sampling and of the form of the answer."""

CHAT = shape.closed(
    {
        **ENVELOPE,
        **SAMPLING,
        **shared.MEDIA,
        **TOOL_FIELDS,
        "messages": MESSAGES,
        "logprobs": shape.flag("Report log-probabilities of the answer."),
        "top_logprobs": shape.integer(
            0, 64, "Also report so many likeliest tokens a position."
        ),
        "modalities": shape.only(["text"]),
        **{
            name: shape.only()
            for name in (
                "audio",
                "prediction",
                "reasoning_effort",
                "verbosity",
                "web_search_options",
            )
        },
    },
    need=("messages",),
) | {"title": "ChatCompletion"}
"""The body of `/v1/chat/completions`."""
