"""Fields that several surfaces read alike: sampling, forms of answers, media, identity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import get_type_hints

from mmserve.core import SamplingParams
from mmserve.server.describe.schema import (
    Schema,
    array,
    closed,
    either,
    flag,
    integer,
    number,
    opened,
    schema_or_text,
    text,
)

__all__ = [
    "CLIP",
    "CONSTRAINTS",
    "MEDIA",
    "MODEL",
    "PICTURE",
    "PRIORITY",
    "SALT",
    "USAGE",
    "USER",
    "limits_of_clips",
    "sampling",
]

_MAX_NAME = 256
_SET_BY_SURFACES = frozenset(
    {"constraint", "return_logprobs", "top_logprobs", "prompt_logprobs_from", "max_new_tokens"}
)
_TEXTS = either(text(), array(text(), most=64))

MODEL = text("The served name, its path, or `default`.")
USER = text("Who the client is, where no key of its own says so.", most=_MAX_NAME)
SALT = text("Keeps what is cached apart from that of other salts.", most=_MAX_NAME)
PRIORITY = integer(-(2**31), 2**31, "Higher goes first among one client's requests.")

MEDIA: Mapping[str, Schema] = {
    "num_frames": integer(1, 1_000_000, "Frames to take from each clip."),
    "fps": number(1e-6, 1e6, "Frames to take from each second of a clip."),
    "max_pixels": integer(1, 2**40, "Larger pictures and frames are made smaller."),
    "min_pixels": integer(1, 2**40, "Smaller pictures and frames are made larger."),
}
"""What a body says of all its media; an item's own values come first."""

CONSTRAINTS: Mapping[str, Schema] = {
    "regex": text("The whole answer matches this expression."),
    "choices": array(text(), "The answer is one of these texts.", least=1, most=10_000),
    "json_schema": schema_or_text("The answer is a JSON value of this schema."),
    "ebnf": text("The whole answer is a sentence of this grammar."),
}
"""Forms of the answer; one answer takes one."""

_SIZES = {name: MEDIA[name] for name in ("max_pixels", "min_pixels")}
_WORDS_OF_MEDIA = "An http(s):, data: or file: address, an uploaded file's id, or base64."

PICTURE = either(
    text(f"{_WORDS_OF_MEDIA} `video:` and base64 is a clip of pictures in a row."),
    closed({"url": text(_WORDS_OF_MEDIA), **_SIZES}, need=("url",)),
)
"""A picture beside a prompt."""


def limits_of_clips() -> Mapping[str, Schema]:
    """What a clip's object may say, beside where the clip is. Pure."""
    return {
        **MEDIA,
        "start_s": number(0, 1e9, "Take frames from here on, in seconds."),
        "end_s": number(0, 1e9, "Take frames up to here, in seconds."),
        "times_s": array(number(0, 1e9), "Take the frames at these times.", most=1024),
        "key_frames": flag("Take key frames only."),
    }


CLIP = either(
    text(_WORDS_OF_MEDIA),
    closed(
        {
            "url": text(_WORDS_OF_MEDIA),
            "frames": array(text("base64 or a data: address of a picture.")),
            **limits_of_clips(),
        }
    ),
)
"""A clip beside a prompt: one of `url` and `frames`."""

USAGE = opened(
    {
        "prompt_tokens": integer(0, 2**53),
        "completion_tokens": integer(0, 2**53),
        "total_tokens": integer(0, 2**53),
    }
)


def sampling(names: Mapping[str, str]) -> dict[str, Schema]:
    """The sampling fields as a surface names them, from `core.SamplingParams`. Pure."""
    own: dict[str, Schema] = {
        "stop": _TEXTS,
        "stop_patterns": _TEXTS,
        "stop_token_ids": array(integer(-(2**31), 2**31)),
        "logit_bias": {
            "type": "object",
            "patternProperties": {"^[0-9]{1,7}$": number(-100, 100)},
            "additionalProperties": False,
        },
        "seed": integer(-(2**63), 2**64 - 1),
    }
    hints = get_type_hints(SamplingParams)
    found: dict[str, Schema] = {}
    for spec in fields(SamplingParams):
        if spec.name in _SET_BY_SURFACES:
            continue
        schema = own.get(spec.name)
        if schema is None:
            kinds = {bool: flag, float: number}
            make = kinds.get(hints[spec.name], integer)
            limits = (spec.metadata["low"], spec.metadata["high"]) if make is not flag else ()
            schema = make(*limits)  # type: ignore[operator]  # each takes its own limits
        doc = spec.metadata["doc"]
        found[names.get(spec.name, spec.name)] = schema | {"description": doc}
    return found
