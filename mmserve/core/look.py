"""What a model is going to see of a picture, clip or prompt, for people who want to look."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mmserve.core.media import GridPlace
from mmserve.core.output import FrameReport

__all__ = ["ItemLook", "MediaLook", "PromptLook", "SpanLook"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemLook:
    """One encoded item: a picture, a frame, or a group of frames.

    Args:
        identity: hexadecimal digest of bytes, decode options, processor, model and salt.
        width: pixels across, upright, before processing.
        height: pixels down, upright, before processing.
        timestamps_s: of its frames, in seconds from the clip's first; none for a picture.
        pieces: what stands in the prompt: text, and numbers of its features.
        grid: where its tokens lie, for models that ask.
        num_features: tokens that are features.
        num_patches: patches that encoding takes.
        inputs: name, shape and type of each array that the encoder takes.
        decode_ms: from bytes to pixels.
        preprocess_ms: from pixels to inputs.
    """

    identity: str
    width: int
    height: int
    timestamps_s: tuple[float, ...]
    pieces: tuple[str | int, ...]
    grid: GridPlace | None
    num_features: int
    num_patches: int
    inputs: tuple[tuple[str, tuple[int, ...], str], ...]
    decode_ms: float
    preprocess_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaLook:
    """A picture or clip as the model will see it.

    Args:
        source: format or codec, size and turn, as its header says.
        items: in the order of the prompt.
        note: what is wrong with a clip that is served all the same.
        prompt_tokens: tokens it takes in a prompt, with the text around.
        fetch_ms: from the address to bytes.
        probe_ms: from bytes to sizes, tokens and identities, without decoding.
        encode_ms: from inputs to features, for all items.
    """

    source: str
    items: tuple[ItemLook, ...]
    note: str | None
    prompt_tokens: int
    fetch_ms: float
    probe_ms: float
    encode_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanLook:
    """Tokens [start, start + num_tokens) of a prompt that stand for a picture or frames.

    Args:
        identity: as `ItemLook.identity`.
        kind: whether it belongs to a picture or a clip.
        start: of its first token.
        num_tokens: with the text inside.
        width: pixels across, upright, before processing.
        height: pixels down, upright, before processing.
        timestamps_s: of its frames, in seconds from the clip's first; none for a picture.
        pictures: a small JPEG of each of its frames, in order; none beyond what may be shown.
    """

    identity: str
    kind: Literal["image", "video"]
    start: int
    num_tokens: int
    width: int
    height: int
    timestamps_s: tuple[float, ...] = ()
    pictures: tuple[bytes, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLook:
    """A prompt as the model will get it, with spans in order and what was taken of clips."""

    token_ids: tuple[int, ...] = field(repr=False)
    spans: tuple[SpanLook, ...] = ()
    clips: tuple[FrameReport, ...] = ()
