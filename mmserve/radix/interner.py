"""Prefix keys: one int64 a token, equal only if the token stands for the same thing.

    key >= 0                          a text token, its id
    key = -(1 + (item << 20) + o)     token o of media item `item`

`item` is a small number given to a full 16-byte digest and never given to another one, so keys
are exact: no hash of ours can confuse two pictures.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mmserve.core import BadRequest, MediaSpan, Prompt

__all__ = ["OFFSET_BITS", "Interner", "media_parts", "media_start", "prefix_keys"]

OFFSET_BITS = 20
_DIGEST_BYTES = 16
_Kind = Literal["image", "video"]


class Interner:
    """Numbers media digests: the same digest gets the same number while it is remembered.

    The table forgets the digests least recently used beyond `capacity`. That is safe, since
    numbers are never given twice: a forgotten digest gets a new number, and KV under the old
    one can no longer be found and ages out.
    """

    def __init__(self, capacity: int = 65536) -> None:
        self._capacity = capacity
        self._items: OrderedDict[bytes, int] = OrderedDict()
        self._names: dict[int, tuple[bytes, _Kind]] = {}
        self._next_item = 0

    def __len__(self) -> int:
        return len(self._items)

    def item(self, digest: bytes, kind: _Kind = "image") -> int:
        """Number of a digest. Changes: the table, its order of use, the kind last seen."""
        known = self._items.get(digest)
        if known is not None:
            self._items.move_to_end(digest)
            self._names[known] = (digest, kind)
            return known
        item = self._next_item
        self._next_item += 1
        self._items[digest] = item
        self._names[item] = (digest, kind)
        if len(self._items) > self._capacity:
            del self._names[self._items.popitem(last=False)[1]]
        return item

    def name(self, item: int) -> tuple[str, _Kind] | None:
        """Hexadecimal digest and kind of an item; None if it is forgotten. Pure."""
        if item not in self._names:
            return None
        digest, kind = self._names[item]
        return digest[:_DIGEST_BYTES].hex(), kind


def prefix_keys(prompt: Prompt, interner: Interner) -> NDArray[np.int64]:
    """Keys int64 [n] of a prompt, a new array.

    Raises:
        BadRequest: a span has more tokens than an offset can count (2**20).

    Changes: `interner`. Cost: one vector operation a span.
    """
    keys = prompt.token_ids.astype(np.int64, copy=True)
    for span in prompt.spans:
        if span.num_tokens > 1 << OFFSET_BITS:
            message = f"a picture of {span.num_tokens} tokens, the limit is {1 << OFFSET_BITS}"
            raise BadRequest(message, field="image_url", reason="too_large")
        first = 1 + (interner.item(_identity(span), span.kind) << OFFSET_BITS)
        keys[span.start : span.end] = -np.arange(first, first + span.num_tokens)
    return keys


def _identity(span: MediaSpan) -> bytes:
    """Digest of a span, told apart where it goes on in a clip instead of beginning one.

    Two clips in a row would else have the keys of one longer clip, whose tokens stand at other
    times.
    """
    goes_on = span.grid is not None and not span.grid.is_first
    return span.digest + b"+" if goes_on else span.digest


def media_parts(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Items and offsets, int64 [n] each, of keys; both are -1 for text. Pure."""
    codes = -keys - 1
    is_text = keys >= 0
    items = np.where(is_text, -1, codes >> OFFSET_BITS)
    offsets = np.where(is_text, -1, codes & ((1 << OFFSET_BITS) - 1))
    return items, offsets


def media_start(keys: NDArray[np.int64], position: int) -> int:
    """Where the run of one media item begins that has the token at `position`. Pure.

    A text token is a run of its own.
    """
    if keys[position] >= 0:
        return position
    items, offsets = media_parts(keys[: position + 1])
    is_other = (items != items[position]) | (
        offsets - np.arange(position + 1) != (offsets[position] - position)
    )
    others = np.flatnonzero(is_other)
    return int(others[-1]) + 1 if len(others) else 0
