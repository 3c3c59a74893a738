"""Prompts of the native surface: rendered text, token ids or parts, and media beside them.

"text" + "image_data"       ->  raw text split at its placeholders, the k-th takes item k
"input_ids" + "image_data"  ->  ids split at the model's placeholder id
"parts"                     ->  parts and turns as they stand
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mmserve.core import (
    BadRequest,
    ImagePart,
    ModelInfo,
    Part,
    RawPart,
    TextPart,
    TokensPart,
    Turn,
    VideoPart,
)
from mmserve.prompt import IMAGE_SPELLINGS, split_placeholders
from mmserve.server.calls import MOST_ANSWERS
from mmserve.server.fields import (
    Body,
    Check,
    anything,
    boolean,
    integers,
    list_of,
    short_text,
    text,
    wrong,
)
from mmserve.server.media import MediaDefaults, clip_item, picture_item

__all__ = ["NativePrompts", "media_kinds", "take_prompts"]

Media = ImagePart | VideoPart
TurnPart = TextPart | RawPart | Media
M = TypeVar("M", bound=Media)


@dataclass(frozen=True, slots=True)
class NativePrompts:
    """The prompts of one call; a batch is answered with a list even if it holds one."""

    parts: tuple[tuple[Part, ...], ...]
    is_batch: bool


def take_prompts(
    body: Body, model: ModelInfo, own_spelling: str, media: MediaDefaults
) -> NativePrompts:
    """Read `text`, `input_ids` or `parts`, and media. Changes: the fields count as known.

    `own_spelling` is how the model itself spells a picture's place, or "".
    """

    def picture(value: object, name: str) -> Media:
        return picture_item(value, name, media)

    def clip(value: object, name: str) -> VideoPart:
        return clip_item(value, name, media)

    given = [field for field in ("text", "input_ids", "parts") if body.has(field)]
    if len(given) != 1:
        message = f"{' and '.join(given) or 'none'} of text, input_ids and parts given"
        raise BadRequest(f"{message}, exactly one is needed", field="text", reason="conflict")
    texts, is_text_batch = body.take("text", _texts, ((), False))
    ids, is_ids_batch = body.take("input_ids", _ids(model.vocab_size), ((), False))
    own_parts = body.take("parts", list_of(lambda item, name: _part(item, name, media)), None)
    is_batch = is_text_batch or is_ids_batch
    if own_parts is not None:
        body.neutral("image_data")
        body.neutral("video_data")
        _check_open_turns(own_parts)
        return NativePrompts((own_parts,), is_batch=False)
    num_prompts = len(texts) + len(ids)
    pictures = _take_media(body, "image_data", picture, num_prompts, is_batch=is_batch)
    clips = _take_media(body, "video_data", clip, num_prompts, is_batch=is_batch)
    spellings = (*IMAGE_SPELLINGS, own_spelling) if own_spelling else IMAGE_SPELLINGS
    prompts = [
        split_placeholders(words, spellings, pictures[k], clips[k]) or (RawPart(""),)
        for k, words in enumerate(texts)
    ] + [_from_ids(row, pictures[k], clips[k], model) for k, row in enumerate(ids)]
    return NativePrompts(tuple(prompts), is_batch)


def media_kinds(parts: tuple[Part, ...]) -> set[str]:
    """Which of "image" and "video" a prompt holds. Pure."""
    kinds: set[str] = set()
    for part in parts:
        if isinstance(part, Turn):
            kinds |= media_kinds(part.parts)
        elif isinstance(part, ImagePart):
            kinds.add("image")
        elif isinstance(part, VideoPart):
            kinds.add("video")
    return kinds


def _texts(value: object, name: str) -> tuple[tuple[str, ...], bool]:
    if isinstance(value, str):
        return (value,), False
    if not isinstance(value, list):
        raise wrong(name, value, "a string or a list of strings")
    texts = list_of(text, most=MOST_ANSWERS)(value, name)
    _check_some(texts, name)
    return texts, True


def _ids(vocab_size: int) -> Check[tuple[tuple[tuple[int, ...], ...], bool]]:
    row_of = integers(0, vocab_size - 1)

    def check(value: object, name: str) -> tuple[tuple[tuple[int, ...], ...], bool]:
        is_batch = isinstance(value, list) and bool(value) and isinstance(value[0], list)
        rows = (
            list_of(row_of, most=MOST_ANSWERS)(value, name)
            if is_batch
            else (row_of(value, name),)
        )
        for row in rows:
            _check_some(row, name)
        return rows, is_batch

    return check


def _check_some(items: Sequence[object], name: str) -> None:
    if not items:
        raise BadRequest(f"{name} is empty", field=name, reason="empty")


def _take_media(
    body: Body, field: str, item_of: Check[M], num_prompts: int, *, is_batch: bool
) -> list[tuple[M, ...]]:
    """The items of each prompt; one item for a batch is shared by all."""
    value, name = body.take(field, anything, None), body.name(field)
    if value is None:
        return [()] * num_prompts
    if not isinstance(value, list):
        return [(item_of(value, name),)] * num_prompts
    if not is_batch:
        return [list_of(item_of)(value, name)]
    if len(value) != num_prompts:
        raise wrong(name, value, f"one entry for each of the {num_prompts} prompts")
    return [_entry(entry, f"{name}[{k}]", item_of) for k, entry in enumerate(value)]


def _entry(value: object, name: str, item_of: Check[M]) -> tuple[M, ...]:
    if value is None:
        return ()
    if isinstance(value, list):
        return list_of(item_of)(value, name)
    return (item_of(value, name),)


def _from_ids(
    row: tuple[int, ...],
    pictures: tuple[Media, ...],
    clips: tuple[VideoPart, ...],
    model: ModelInfo,
) -> tuple[Part, ...]:
    items: list[Media] = [*pictures, *clips]
    if not items:
        return (TokensPart(row),)
    places = [k for k, token_id in enumerate(row) if token_id == model.image_token_id]
    if len(places) != len(items) or (pictures and clips):
        message = (
            f"input_ids hold {len(places)} placeholders for {len(pictures)} pictures "
            f"and {len(clips)} clips"
        )
        hint = "one placeholder id for each item; pictures and clips not in one prompt of ids"
        raise BadRequest(message, field="input_ids", reason="placeholders", hint=hint)
    parts: list[Part] = []
    start = 0
    for place, item in zip(places, items, strict=True):
        parts += [TokensPart(row[start:place]), item]
        start = place + 1
    parts.append(TokensPart(row[start:]))
    return tuple(part for part in parts if not isinstance(part, TokensPart) or part.token_ids)


def _part(value: object, name: str, media: MediaDefaults) -> Part:
    body = Body(value, name)
    part: Part
    if body.has("role"):
        role = body.need("role", short_text)
        inner = list_of(lambda item, where: _turn_part(item, where, media))
        parts = body.take("parts", inner, ())
        part = Turn(role, parts, is_open=body.take("open", boolean, default=False))
    elif body.has("tokens"):
        part = TokensPart(body.need("tokens", integers(0, 2**31)))
    else:
        return _turn_part(value, name, media)
    body.finish()
    return part


def _turn_part(value: object, name: str, media: MediaDefaults) -> TurnPart:
    body = Body(value, name)
    given = [kind for kind in _PARTS if body.has(kind)]
    if len(given) != 1:
        kinds = ", ".join(_PARTS)
        raise BadRequest(f"{name} needs exactly one of {kinds}", field=name, reason="value")
    reader = _PARTS[given[0]]
    part = body.need(given[0], lambda item, where: reader(item, where, media))
    body.finish()
    return part


_PARTS: dict[str, Callable[[object, str, MediaDefaults], TurnPart]] = {
    "text": lambda value, name, _media: TextPart(text(value, name)),
    "raw": lambda value, name, _media: RawPart(text(value, name)),
    "image": picture_item,
    "video": clip_item,
}


def _check_open_turns(parts: tuple[Part, ...]) -> None:
    _check_some(parts, "parts")
    for k, part in enumerate(parts[:-1]):
        if isinstance(part, Turn) and part.is_open:
            name = f"parts[{k}].open"
            raise BadRequest(
                f"{name} is true, only the last turn may be open", field=name, reason="value"
            )
