"""Placeholders for media in raw prompt text, as native clients write them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from mmserve.core import BadRequest, ImagePart, Part, RawPart, VideoPart

__all__ = ["IMAGE_SPELLINGS", "VIDEO_SPELLINGS", "split_placeholders"]

IMAGE_SPELLINGS = (
    "<image>",
    "<|image|>",
    "[IMG]",
    "<image_placeholder>",
    "(<image>./</image>)",
    "<|vision_start|><|image_pad|><|vision_end|>",
)
"""Spellings of a picture's place in clients' templates; add the model's own to them."""

VIDEO_SPELLINGS = ("<video>", "<|vision_start|><|video_pad|><|vision_end|>")
"""Spellings of a clip's place."""


def split_placeholders(
    text: str,
    spellings: Iterable[str],
    image_parts: Sequence[ImagePart | VideoPart],
    video_parts: Sequence[VideoPart] = (),
    video_spellings: Iterable[str] = VIDEO_SPELLINGS,
) -> tuple[Part, ...]:
    """Template text with the k-th placeholder of each kind replaced by the k-th item.

    Args:
        text: raw prompt text; control tokens in it count.
        spellings: placeholders of pictures, `IMAGE_SPELLINGS` and the model's own.
        image_parts: what the client sent as pictures; frames sent as a picture are a clip here.
        video_parts: what the client sent as clips.
        video_spellings: placeholders of clips.

    Returns:
        RawPart, ImagePart and VideoPart in order. Placeholders of a kind that no item was sent
        for stay plain text.

    Raises:
        BadRequest: more or fewer placeholders than items.

    Pure.
    """
    kinds = dict.fromkeys(spellings, "image") if image_parts else {}
    if video_parts:
        kinds |= dict.fromkeys(video_spellings, "video")
    if not kinds:
        return (RawPart(text),) if text else ()
    ordered = sorted(kinds, key=len, reverse=True)
    pieces = re.split(f"({'|'.join(map(re.escape, ordered))})", text)
    waiting = {"image": iter(image_parts), "video": iter(video_parts)}
    _check_count(pieces, kinds, "image", len(image_parts))
    _check_count(pieces, kinds, "video", len(video_parts))
    parts: list[Part] = []
    for order, piece in enumerate(pieces):
        if order % 2:
            parts.append(next(waiting[kinds[piece]]))
        elif piece:
            parts.append(RawPart(piece))
    return tuple(parts)


def _check_count(
    pieces: Sequence[str], kinds: dict[str, str], kind: str, num_items: int
) -> None:
    num_places = sum(kinds[piece] == kind for piece in pieces[1::2])
    if num_places != num_items:
        raise BadRequest(
            f"the text has {num_places} placeholders for {num_items} items of {kind}_data",
            field=f"{kind}_data",
            reason="placeholders",
            num_placeholders=num_places,
            num_items=num_items,
            hint="write one placeholder, such as <image>, for each item",
        )
