"""The native routes as `/openapi.json` tells of them."""

from __future__ import annotations

from mmserve.server.calls import MOST_ANSWERS
from mmserve.server.chat.schema import CHAT
from mmserve.server.describe import schema as shape
from mmserve.server.describe import shared
from mmserve.server.native.request import OFF_ONLY
from mmserve.server.sampling import NATIVE_NAMES

__all__ = ["GENERATE", "SURFACE"]

_COUNT = shape.integer(0, 2**53)
_PLAIN: shape.Schema = {"type": "string"}
_ID = shape.integer(0, 2**31)
_IDS = shape.array(_ID, least=1)
_SHORT = shape.text(most=256)


def _each(schema: shape.Schema, doc: str) -> shape.Schema:
    """One value for all prompts, or a list with one for each, where null is the default."""
    own = {"anyOf": [schema, {"type": "null"}]}
    return shape.either(schema, shape.array(own), doc=f"{doc} One for all prompts, or a list.")


_SAMPLING = shape.closed(
    {
        **shared.sampling(NATIVE_NAMES),
        **shared.CONSTRAINTS,
        "max_new_tokens": shape.integer(0, 2**31, "Most tokens to generate."),
        "spaces_between_special_tokens": {"enum": [True, None]},
    }
)
_TURN_PARTS = (
    shape.closed({"text": shape.text("Text that is no control text.")}, need=("text",)),
    shape.closed({"raw": shape.text("Text as the model's templates write it.")}, need=("raw",)),
    shape.closed({"image": shared.PICTURE}, need=("image",)),
    shape.closed({"video": shared.CLIP}, need=("video",)),
)
_TURN = shape.closed(
    {
        "role": _SHORT,
        "parts": shape.array(shape.either(*_TURN_PARTS)),
        "open": shape.flag("Whether the turn is the one to be answered; the last one only."),
    },
    need=("role",),
)
_PARTS = shape.array(
    shape.either(
        *_TURN_PARTS, _TURN, shape.closed({"tokens": shape.array(_ID)}, need=("tokens",))
    ),
    least=1,
)
_MEDIA_OF = "An item, a list for one prompt, or a list with an entry for each prompt."


def _media(item: shape.Schema) -> shape.Schema:
    own = {"anyOf": [item, shape.array(item), {"type": "null"}]}
    return shape.either(item, shape.array(own), doc=_MEDIA_OF)


_MEDIA_FIELDS = {"image_data": _media(shared.PICTURE), "video_data": _media(shared.CLIP)}
_FIELDS: dict[str, shape.Schema] = {
    "sampling_params": _each(_SAMPLING, "How tokens are chosen."),
    "return_logprob": _each(shape.flag(), "Report log-probabilities."),
    "logprob_start_len": _each(shape.integer(-1, 2**31), "Report the prompt's from here on."),
    "top_logprobs_num": _each(shape.integer(0, 64), "Report so many likeliest tokens."),
    "choices": shape.array(shape.text(), "Score these as answers.", least=1, most=10_000),
    "token_ids_logprob": shape.only([]),
    "modalities": shape.array(shape.word("image", "multi-images", "video")),
    "cache_salt": shared.SALT,
    "extra_key": shape.text("A second salt.", most=256),
    "priority": shared.PRIORITY,
    "rid": shape.either(shape.text(pattern="^[!-~]{1,128}$"), shape.array(_SHORT)),
    "stream": shape.flag("Send the answer as events, as it grows."),
    "incremental": shape.flag("Each event has what is new, not what has come so far."),
    "return_text_in_logprobs": shape.flag("Entries name the token's text, too."),
    "return_token_ids": shape.flag("Tell the prompt's token ids."),
    **dict.fromkeys(OFF_ONLY, shape.OFF),
}
_PROMPTS: dict[str, shape.Schema] = {
    "text": shape.either(
        shape.text(),
        shape.array(shape.text(), least=1, most=MOST_ANSWERS),
        doc="Rendered text, one or a batch.",
    ),
    "input_ids": shape.either(
        _IDS, shape.array(_IDS, least=1, most=MOST_ANSWERS), doc="Token ids, one or a batch."
    ),
    "parts": {**_PARTS, "description": "Parts and turns in order."},
}


def _generate_body(prompt: str) -> shape.Schema:
    """A body whose prompt is in this field, and in none of the others."""
    others = {name: shape.only(doc="Another field has the prompt.") for name in _PROMPTS}
    media = (
        _MEDIA_FIELDS if prompt != "parts" else {name: shape.only() for name in _MEDIA_FIELDS}
    )
    return shape.closed(
        {**others, prompt: _PROMPTS[prompt], **media, **_FIELDS}, need=(prompt,)
    )


GENERATE = shape.either(*map(_generate_body, _PROMPTS)) | {"title": "Generate"}
"""The body of `/generate`: its prompt is in one of three fields."""

_ANSWER = shape.opened(
    {
        "text": shape.text(),
        "output_ids": shape.array(_COUNT),
        "meta_info": shape.opened(
            {"id": shape.text(), "prompt_tokens": _COUNT, "completion_tokens": _COUNT}
        ),
    }
)
_TOKENS = shape.either(_COUNT, shape.array(_COUNT))
_TOKENIZE = shape.either(
    shape.closed(
        {
            "model": shared.MODEL,
            "prompt": shape.either(shape.text(), shape.array(shape.text(), most=MOST_ANSWERS)),
            "add_special_tokens": shape.flag("Put the token before that begins a prompt."),
        },
        need=("prompt",),
    ),
    {
        **{name: value for name, value in CHAT.items() if name != "title"},
        "properties": {**CHAT["properties"], "add_special_tokens": shape.OFF},
    },
) | {"title": "Tokenize"}
_DETOKENIZE = shape.closed(
    {
        "model": shared.MODEL,
        "tokens": shape.either(
            shape.array(_ID), shape.array(shape.array(_ID), least=1, most=MOST_ANSWERS)
        ),
        "skip_special_tokens": shape.flag("Leave control tokens out."),
    },
    need=("tokens",),
)
_HINT = shape.either(
    shape.closed({"image": shared.PICTURE}, need=("image",)),
    shape.closed({"video": shared.CLIP}, need=("video",)),
)
_PREPARE = shape.closed(
    {
        **shared.MEDIA,
        "media": shape.array(_HINT, most=64),
        "user": shared.USER,
        "cache_salt": shared.SALT,
    },
    need=("media",),
)
_TAKES_BODY = ("bad", "absent")

_generate = shape.generating(
    "Answer one prompt or a batch.", GENERATE, shape.either(_ANSWER, shape.array(_ANSWER))
)
_tokenize = shape.Operation(
    summary="Token ids of texts, or of a conversation as it is sent.",
    body=_TOKENIZE,
    answers=shape.json_answer(tokens={"type": "array"}, count=_TOKENS, max_model_len=_COUNT),
    refusals=(*_TAKES_BODY, "left", "behind", "late"),
)
_detokenize = shape.Operation(
    summary="Text of token ids.",
    body=_DETOKENIZE,
    answers=shape.json_answer(text=shape.either(shape.text(), shape.array(shape.text()))),
    refusals=_TAKES_BODY,
)
_flush = shape.Operation(
    summary="Forget cached KV and features, once no request runs.",
    parameters=(shape.query("timeout", shape.number(0, 600)),),
    answers={"text/plain": _PLAIN},
    refusals=("bad",),
)

SURFACE: shape.Surface = {
    "/generate": {"post": _generate, "put": _generate},
    "/prepare": {
        "post": shape.Operation(
            summary="Begin to fetch, decode and encode media that requests will name.",
            body=_PREPARE,
            answers=shape.json_answer(accepted=_COUNT),
            refusals=_TAKES_BODY,
        )
    },
    "/flush_cache": {"get": _flush, "post": _flush},
    "/abort_request": {
        "post": shape.Operation(
            summary="End the caller's calls of one id, or as the operator all calls.",
            body=shape.closed(
                {
                    "rid": shape.text("The id of the calls to end."),
                    "abort_all": shape.flag("End all calls; for the operator."),
                    "abort_message": shape.only(""),
                }
            ),
            refusals=("bad", "admin"),
        )
    },
    "/concate_and_append_request": {
        "post": shape.Operation(
            summary="Nothing: clients join texts themselves.",
            body=shape.closed(
                {"src_rids": shape.array(shape.text()), "dst_rid": shape.text()},
                need=("src_rids", "dst_rid"),
            ),
            answers=shape.json_answer(mode=shape.word("text")),
            refusals=("bad",),
        )
    },
    "/tokenize": {"post": _tokenize},
    "/detokenize": {"post": _detokenize},
    "/v1/tokenize": {"post": _tokenize},
    "/v1/detokenize": {"post": _detokenize},
}
