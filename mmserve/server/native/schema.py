"""The native routes as `/openapi.json` tells of them."""

from __future__ import annotations

from mmserve.server.describe.schema import (
    OFF,
    Operation,
    Schema,
    Surface,
    array,
    closed,
    either,
    flag,
    generating,
    integer,
    json_answer,
    number,
    only,
    opened,
    query,
    text,
    word,
)
from mmserve.server.describe.shared import (
    CLIP,
    CONSTRAINTS,
    MEDIA,
    MODEL,
    PICTURE,
    PRIORITY,
    SALT,
    USER,
    sampling,
)
from mmserve.server.native.request import OFF_ONLY
from mmserve.server.openai.schema import CHAT
from mmserve.server.sampling import NATIVE_NAMES

__all__ = ["GENERATE", "SURFACE"]

_COUNT = integer(0, 2**53)
_PLAIN: Schema = {"type": "string"}
_ID = integer(0, 2**31)
_IDS = array(_ID, least=1)
_SHORT = text(most=256)


def _each(schema: Schema, doc: str) -> Schema:
    """One value for all prompts, or a list with one for each, where null is the default."""
    own = {"anyOf": [schema, {"type": "null"}]}
    return either(schema, array(own), doc=f"{doc} One for all prompts, or a list.")


_SAMPLING = closed(
    {
        **sampling(NATIVE_NAMES),
        **CONSTRAINTS,
        "max_new_tokens": integer(0, 2**31, "Most tokens to generate."),
        "spaces_between_special_tokens": {"enum": [True, None]},
    }
)
_TURN_PARTS = (
    closed({"text": text("Text that is no control text.")}, need=("text",)),
    closed({"raw": text("Text as the model's templates write it.")}, need=("raw",)),
    closed({"image": PICTURE}, need=("image",)),
    closed({"video": CLIP}, need=("video",)),
)
_TURN = closed(
    {
        "role": _SHORT,
        "parts": array(either(*_TURN_PARTS)),
        "open": flag("Whether the turn is the one to be answered; the last one only."),
    },
    need=("role",),
)
_PARTS = array(
    either(*_TURN_PARTS, _TURN, closed({"tokens": array(_ID)}, need=("tokens",))), least=1
)
_MEDIA_OF = "An item, a list for one prompt, or a list with an entry for each prompt."


def _media(item: Schema) -> Schema:
    own = {"anyOf": [item, array(item), {"type": "null"}]}
    return either(item, array(own), doc=_MEDIA_OF)


_MEDIA_FIELDS = {"image_data": _media(PICTURE), "video_data": _media(CLIP)}
_FIELDS: dict[str, Schema] = {
    "sampling_params": _each(_SAMPLING, "How tokens are chosen."),
    "return_logprob": _each(flag(), "Report log-probabilities."),
    "logprob_start_len": _each(integer(-1, 2**31), "Report the prompt's from here on."),
    "top_logprobs_num": _each(integer(0, 64), "Report so many likeliest tokens."),
    "choices": array(text(), "Score these as answers.", least=1, most=10_000),
    "token_ids_logprob": only([]),
    "modalities": array(word("image", "multi-images", "video")),
    "cache_salt": SALT,
    "extra_key": text("A second salt.", most=256),
    "priority": PRIORITY,
    "rid": either(text(pattern="^[!-~]{1,128}$"), array(_SHORT)),
    "stream": flag("Send the answer as events, as it grows."),
    "incremental": flag("Each event has what is new, not what has come so far."),
    "return_text_in_logprobs": flag("Entries name the token's text, too."),
    "return_token_ids": flag("Tell the prompt's token ids."),
    **dict.fromkeys(OFF_ONLY, OFF),
}
_PROMPTS: dict[str, Schema] = {
    "text": either(text(), array(text(), least=1), doc="Rendered text, one or a batch."),
    "input_ids": either(_IDS, array(_IDS, least=1), doc="Token ids, one or a batch."),
    "parts": {**_PARTS, "description": "Parts and turns in order."},
}


def _generate_body(prompt: str) -> Schema:
    """A body whose prompt is in this field, and in none of the others."""
    others = {name: only(doc="Another field has the prompt.") for name in _PROMPTS}
    media = _MEDIA_FIELDS if prompt != "parts" else {name: only() for name in _MEDIA_FIELDS}
    return closed({**others, prompt: _PROMPTS[prompt], **media, **_FIELDS}, need=(prompt,))


GENERATE = either(*map(_generate_body, _PROMPTS)) | {"title": "Generate"}
"""The body of `/generate`: its prompt is in one of three fields."""

_ANSWER = opened(
    {
        "text": text(),
        "output_ids": array(_COUNT),
        "meta_info": opened(
            {"id": text(), "prompt_tokens": _COUNT, "completion_tokens": _COUNT}
        ),
    }
)
_TOKENS = either(_COUNT, array(_COUNT))
_TOKENIZE = either(
    closed(
        {
            "model": MODEL,
            "prompt": either(text(), array(text())),
            "add_special_tokens": flag("Put the token before that begins a prompt."),
        },
        need=("prompt",),
    ),
    {
        **{word: value for word, value in CHAT.items() if word != "title"},
        "properties": {**CHAT["properties"], "add_special_tokens": OFF},
    },
) | {"title": "Tokenize"}
_DETOKENIZE = closed(
    {
        "model": MODEL,
        "tokens": either(array(_ID), array(array(_ID), least=1)),
        "skip_special_tokens": flag("Leave control tokens out."),
    },
    need=("tokens",),
)
_HINT = either(
    closed({"image": PICTURE}, need=("image",)), closed({"video": CLIP}, need=("video",))
)
_PREPARE = closed(
    {**MEDIA, "media": array(_HINT, most=64), "user": USER, "cache_salt": SALT},
    need=("media",),
)
_TAKES_BODY = ("bad", "absent", "large")

_generate = generating(
    "Answer one prompt or a batch.", GENERATE, either(_ANSWER, array(_ANSWER))
)
_tokenize = Operation(
    summary="Token ids of texts, or of a conversation as it is sent.",
    body=_TOKENIZE,
    answers=json_answer(tokens={"type": "array"}, count=_TOKENS, max_model_len=_COUNT),
    refusals=(*_TAKES_BODY, "left", "behind", "late"),
)
_detokenize = Operation(
    summary="Text of token ids.",
    body=_DETOKENIZE,
    answers=json_answer(text=either(text(), array(text()))),
    refusals=_TAKES_BODY,
)
_flush = Operation(
    summary="Forget cached KV and features, once no request runs.",
    parameters=(query("timeout", number(0, 600)),),
    answers={"text/plain": _PLAIN},
    refusals=("bad",),
)

SURFACE: Surface = {
    "/generate": {"post": _generate, "put": _generate},
    "/prepare": {
        "post": Operation(
            summary="Begin to fetch, decode and encode media that requests will name.",
            body=_PREPARE,
            answers=json_answer(accepted=_COUNT),
            refusals=_TAKES_BODY,
        )
    },
    "/flush_cache": {"get": _flush, "post": _flush},
    "/abort_request": {
        "post": Operation(
            summary="End the caller's calls of one id, or as the operator all calls.",
            body=closed(
                {
                    "rid": text("The id of the calls to end."),
                    "abort_all": flag("End all calls; for the operator."),
                    "abort_message": only(""),
                }
            ),
            refusals=("bad", "large", "admin"),
        )
    },
    "/concate_and_append_request": {
        "post": Operation(
            summary="Nothing: clients join texts themselves.",
            body=closed(
                {"src_rids": array(text()), "dst_rid": text()}, need=("src_rids", "dst_rid")
            ),
            answers=json_answer(mode=word("text")),
            refusals=("bad", "large"),
        )
    },
    "/tokenize": {"post": _tokenize},
    "/detokenize": {"post": _detokenize},
    "/v1/tokenize": {"post": _tokenize},
    "/v1/detokenize": {"post": _detokenize},
}
