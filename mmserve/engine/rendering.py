"""A prepared request as people may look at it: its prompt, and small pictures of its media."""

from __future__ import annotations

from mmserve.core import MediaSpan, PromptLook, SpanLook
from mmserve.engine.intake import Prepared
from mmserve.vision import MediaItem, MediaPlane

__all__ = ["look_at_prompt"]


def look_at_prompt(prepared: Prepared, plane: MediaPlane | None) -> PromptLook:
    """The prompt with its spans. Blocks while frames are decoded; raises MediaRefused."""
    items = prepared.items
    pictures = {} if plane is None or not items else plane.previews(tuple(items.values()))
    spans = (
        _look(span, items[span.digest], pictures.get(span.digest, ()))
        for span in prepared.prompt.spans
    )
    token_ids = tuple(prepared.prompt.token_ids.tolist())
    return PromptLook(token_ids=token_ids, spans=tuple(spans), clips=prepared.clips)


def _look(span: MediaSpan, item: MediaItem, pictures: tuple[bytes, ...]) -> SpanLook:
    return SpanLook(
        identity=span.digest.hex(),
        kind=span.kind,
        start=span.start,
        num_tokens=span.num_tokens,
        width=item.width,
        height=item.height,
        timestamps_s=item.timestamps_s,
        pictures=pictures,
    )
