"""Fields that several surfaces read alike: sampling, forms of answers, media, identity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import get_type_hints

from mmserve.core import SamplingParams
from mmserve.server.describe import schema as shape

__all__ = [
    "CLIP",
    "CONSTRAINTS",
    "HANDLING",
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
_TEXTS = shape.either(shape.text(), shape.array(shape.text(), most=64))

MODEL = shape.text("The served name, its path, or `default`.")
USER = shape.text("Who the client is, where no key of its own says so.", most=_MAX_NAME)
SALT = shape.text("Keeps what is cached apart from that of other salts.", most=_MAX_NAME)
PRIORITY = shape.integer(-(2**31), 2**31, "Higher goes first among one client's requests.")

HANDLING: Mapping[str, shape.Schema] = {
    "cache_salt": SALT,
    "priority": PRIORITY,
    "return_timing": shape.flag("Tell the time of each stage, and what was cached."),
    "return_token_ids": shape.flag("Tell the token ids of prompt and answer."),
    "rid": shape.text("The request's id; goes before the header's.", pattern="^[!-~]{1,128}$"),
}
"""How a request is handled, whatever it asks the model."""

MEDIA: Mapping[str, shape.Schema] = {
    "num_frames": shape.integer(1, 1_000_000, "Frames to take from each clip."),
    "fps": shape.number(1e-6, 1e6, "Frames to take from each second of a clip."),
    "max_pixels": shape.integer(1, 2**40, "Larger pictures and frames are made smaller."),
    "min_pixels": shape.integer(1, 2**40, "Smaller pictures and frames are made larger."),
}
"""What a body says of all its media; an item's own values come first."""

CONSTRAINTS: Mapping[str, shape.Schema] = {
    "regex": shape.text("The whole answer matches this expression."),
    "choices": shape.array(
        shape.text(), "The answer is one of these texts.", least=1, most=10_000
    ),
    "json_schema": shape.schema_or_text("The answer is a JSON value of this schema."),
    "ebnf": shape.text("The whole answer is a sentence of this grammar."),
}
"""Forms of the answer; one answer takes one."""

_SIZES = {name: MEDIA[name] for name in ("max_pixels", "min_pixels")}
_WORDS_OF_MEDIA = "An http(s):, data: or file: address, an uploaded file's id, or base64."

PICTURE = shape.either(
    shape.text(f"{_WORDS_OF_MEDIA} `video:` and base64 is a clip of pictures in a row."),
    shape.closed({"url": shape.text(_WORDS_OF_MEDIA), **_SIZES}, need=("url",)),
)
"""A picture beside a prompt."""


def limits_of_clips() -> Mapping[str, shape.Schema]:
    """What a clip's object may say, beside where the clip is. Pure."""
    return {
        **MEDIA,
        "start_s": shape.number(0, 1e9, "Take frames from here on, in seconds."),
        "end_s": shape.number(0, 1e9, "Take frames up to here, in seconds."),
        "times_s": shape.array(
            shape.number(0, 1e9), "Take the frames at these times.", most=1024
        ),
        "key_frames": shape.flag("Take key frames only."),
    }


CLIP = shape.either(
    shape.text(_WORDS_OF_MEDIA),
    shape.closed(
        {
            "url": shape.text(_WORDS_OF_MEDIA),
            "frames": shape.array(shape.text("base64 or a data: address of a picture.")),
            **limits_of_clips(),
        }
    ),
)
"""A clip beside a prompt: one of `url` and `frames`."""

USAGE = shape.opened(
    {
        "prompt_tokens": shape.integer(0, 2**53),
        "completion_tokens": shape.integer(0, 2**53),
        "total_tokens": shape.integer(0, 2**53),
    }
)


def sampling(names: Mapping[str, str]) -> dict[str, shape.Schema]:
    """The sampling fields as a surface names them, from `core.SamplingParams`. Pure."""
    own: dict[str, shape.Schema] = {
        "stop": _TEXTS,
        "stop_patterns": _TEXTS,
        "stop_token_ids": shape.array(shape.integer(-(2**31), 2**31)),
        "logit_bias": {
            "type": "object",
            "patternProperties": {"^[0-9]{1,7}$": shape.number(-100, 100)},
            "additionalProperties": False,
        },
        "seed": shape.integer(-(2**63), 2**64 - 1),
    }
    hints = get_type_hints(SamplingParams)
    found: dict[str, shape.Schema] = {}
    for spec in fields(SamplingParams):
        if spec.name in _SET_BY_SURFACES:
            continue
        schema = own.get(spec.name)
        if schema is None:
            kinds = {bool: shape.flag, float: shape.number}
            make = kinds.get(hints[spec.name], shape.integer)
            limits = (
                (spec.metadata["low"], spec.metadata["high"]) if make is not shape.flag else ()
            )
            schema = make(*limits)  # type: ignore[operator]  # each takes its own limits
        doc = spec.metadata["doc"]
        found[names.get(spec.name, spec.name)] = schema | {"description": doc}
    return found
