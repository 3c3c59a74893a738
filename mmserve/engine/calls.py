"""Plain Python calls turned into requests: prompts with pictures beside them, chat messages."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, cast

from mmserve.core import (
    BadRequest,
    BytesSource,
    FramesSource,
    ImagePart,
    MediaSource,
    Part,
    PathSource,
    SamplingParams,
    TextPart,
    TokensPart,
    Turn,
    UrlSource,
    VideoPart,
)
from mmserve.prompt import IMAGE_SPELLINGS, split_placeholders

__all__ = ["chat_parts", "prompt_parts", "sampling_of", "source_of"]

_SCHEMES = ("http:", "https:", "data:", "file:")


def source_of(media: object) -> MediaSource:
    """Where a picture or clip comes from: path, URL, bytes, file object, or PIL picture.

    Raises BadRequest for anything else.
    """
    if isinstance(media, BytesSource | UrlSource | PathSource | FramesSource):
        return media
    if isinstance(media, bytes):
        return BytesSource(media)
    if isinstance(media, str | os.PathLike):
        return _named_source(os.fspath(cast("str | os.PathLike[str]", media)))
    if hasattr(media, "read"):
        return BytesSource(media.read())
    if hasattr(media, "save"):
        buffer = io.BytesIO()
        media.save(buffer, "PNG")
        return BytesSource(buffer.getvalue())
    kind = type(media).__name__
    hint = "give a path, URL, bytes, file object or PIL picture"
    raise BadRequest(f"a {kind} is no picture", field="images", reason="type", hint=hint)


def _named_source(name: str) -> MediaSource:
    is_url = name.lower().startswith(_SCHEMES)
    return UrlSource(name) if is_url else PathSource(name)


def prompt_parts(
    prompt: str | Sequence[int], images: object = None, videos: object = None
) -> tuple[Part, ...]:
    """A prompt in template form; the k-th placeholder in it takes the k-th picture.

    Media stand before a prompt of token ids. Pure.
    """
    pictures = tuple(ImagePart(source_of(item)) for item in _listed(images))
    clips = tuple(
        item if isinstance(item, VideoPart) else VideoPart(source_of(item))
        for item in _listed(videos)
    )
    if isinstance(prompt, str):
        return split_placeholders(prompt, IMAGE_SPELLINGS, pictures, clips)
    if pictures or clips:
        return (*pictures, *clips, TokensPart(tuple(prompt)))
    return (TokensPart(tuple(prompt)),)


def _listed(value: object) -> list[object]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def chat_parts(messages: Sequence[Mapping[str, Any]]) -> tuple[Part, ...]:
    """Messages in OpenAI's form as turns, and an open turn for the answer. Pure.

    Content is a string or a list of `{"type": "text" | "image_url" | "image" | "video_url" |
    "video", <type>: value}`, where a value of media is whatever `source_of` takes.
    """
    return (*map(_turn, messages), Turn("assistant", (), is_open=True))


def _turn(message: object) -> Turn:
    if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
        hint = "each message is a mapping with role and content"
        raise BadRequest(
            "a message lacks its parts", field="messages", reason="form", hint=hint
        )
    return Turn(str(message["role"]), _content(message["content"]))


def _content(content: object) -> tuple[TextPart | ImagePart | VideoPart, ...]:
    if isinstance(content, str):
        return (TextPart(content),)
    if not isinstance(content, list | tuple):
        raise BadRequest("content is neither a text nor a list", field="content", reason="type")
    return tuple(_content_part(part) for part in content)


def _content_part(part: object) -> TextPart | ImagePart | VideoPart:
    if not isinstance(part, Mapping):
        hint = "each part is a text, or a mapping with its type"
        raise BadRequest("a part is no mapping", field="content", reason="type", hint=hint)
    kind = str(part.get("type"))
    value = part.get(kind)
    if kind == "text":
        return TextPart(str(value))
    if isinstance(value, Mapping):
        value = value.get("url")
    if kind in ("image_url", "image"):
        return ImagePart(source_of(value))
    if kind in ("video_url", "video"):
        return VideoPart(source_of(value))
    message = f"no part of content is called {kind!r}"
    hint = "text, image_url, image, video_url or video"
    raise BadRequest(message, field="content", reason="type", hint=hint)


def sampling_of(values: SamplingParams | Mapping[str, Any] | None) -> SamplingParams:
    """Sampling parameters from a mapping. Raises BadRequest for names it does not know."""
    if values is None:
        return SamplingParams()
    if isinstance(values, SamplingParams):
        return values
    known = {spec.name for spec in fields(SamplingParams)}
    unknown = sorted(values.keys() - known)
    if unknown:
        hint = f"known are {', '.join(sorted(known))}"
        raise BadRequest(f"no sampling parameter {unknown[0]!r}", field=unknown[0], hint=hint)
    named = dict(values)
    for name in ("stop", "stop_token_ids"):
        value = named.get(name)
        if value is not None:
            named[name] = tuple(value) if isinstance(value, list | tuple) else (value,)
    return SamplingParams(**named)
