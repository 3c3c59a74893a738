"""A rendered prompt: token ids with media spans in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mmserve.core.media import GridPlace

if TYPE_CHECKING:  # keeps the start of the command line and the language light
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["MediaSpan", "Prompt"]


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """Tokens [start, start + num_tokens) of a prompt stand for one picture or one frame.

    Args:
        digest: 16-byte identity: bytes, decode options, processor, model, salt.
        start: of its first token.
        num_tokens: with the text inside.
        kind: how its tokens are counted.
        is_atomic: it has two-way attention inside; no match, chunk or eviction may cut it.
        runs: [start, end) inside the span that hold its features in order, if text stands
            between them; empty: all of it.
        grid: where its tokens lie in time and space, for models that ask.
    """

    digest: bytes
    start: int
    num_tokens: int
    kind: Literal["image", "video"] = "image"
    is_atomic: bool = False
    runs: tuple[tuple[int, int], ...] = ()
    grid: GridPlace | None = None

    @property
    def end(self) -> int:
        """One past the span's last token."""
        return self.start + self.num_tokens

    @property
    def num_features(self) -> int:
        """Tokens that are features of the item, the others being text."""
        return sum(end - start for start, end in self.runs) if self.runs else self.num_tokens


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """Token ids with spans in order.

    Args:
        token_ids: int64 [n]; media positions hold the placeholder id.
        spans: pictures and frames in order.
        namespace: separates what must never share KV: tenant salts, adapters.
        positions: int64 [3, n], time, row and column of each token, for models that ask; None:
            a token's position is its place.
        next_position: of the first token after the prompt, in all three, if there are some.
    """

    token_ids: NDArray[np.int64]
    spans: tuple[MediaSpan, ...] = ()
    namespace: str = ""
    positions: NDArray[np.int64] | None = None
    next_position: int = 0

    @property
    def num_tokens(self) -> int:
        """Length of the prompt, media included."""
        return len(self.token_ids)

    @property
    def num_image_tokens(self) -> int:
        """Tokens that stand for pictures."""
        return sum(span.num_tokens for span in self.spans if span.kind == "image")

    @property
    def num_video_tokens(self) -> int:
        """Tokens that stand for frames of clips."""
        return sum(span.num_tokens for span in self.spans if span.kind == "video")
