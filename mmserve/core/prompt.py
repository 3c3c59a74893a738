"""A rendered prompt: token ids with media spans in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # keeps the start of the command line and the language light
    import numpy as np
    from numpy.typing import NDArray


__all__ = ["MediaSpan", "Prompt"]


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """Tokens [start, start + num_tokens) of a prompt stand for one picture or one frame.

    `digest` is the 16-byte identity: bytes, decode options, processor, model, salt. An
    `is_atomic` span has two-way attention inside, so no match, chunk or eviction may cut it.
    """

    digest: bytes
    start: int
    num_tokens: int
    kind: Literal["image", "video"] = "image"
    is_atomic: bool = False

    @property
    def end(self) -> int:
        """One past the span's last token."""
        return self.start + self.num_tokens


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """Token ids int64 [n] with spans in order; media positions hold the placeholder id.

    `namespace` separates what must never share KV: tenant salts, adapters.
    """

    token_ids: NDArray[np.int64]
    spans: tuple[MediaSpan, ...] = ()
    namespace: str = ""

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
