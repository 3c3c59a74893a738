"""What the planning wing needs to know of a loaded model."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ModelInfo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """Facts of one model on one device.

    Args:
        name: what clients call it (`tabletop`, a directory's name).
        family: the architecture's word (`llava`, `llama`).
        path: directory or file it was read from.
        context_length: most tokens of prompt and answer together.
        vocab_size: rows of the logits; token ids are in [0, vocab_size).
        eos_token_ids: tokens that end an answer.
        bos_token_id: token that begins a sequence, or None.
        image_token_id: placeholder id at media positions, or None for a text-only model.
        num_slots: tokens of KV that the store holds.
        kv_bytes_per_token: bytes of one slot over all layers.
        feature_bytes_per_token: bytes of one encoded picture token.
        fingerprint: 16 bytes over configuration and weights' identity; part of media digests.
        video_token_id: placeholder of clips, if it is another one than that of pictures.
        kernels: what computes it, and a line for each way that is not used, saying why.
    """

    name: str
    family: str
    path: str
    context_length: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    image_token_id: int | None
    num_slots: int
    kv_bytes_per_token: int
    feature_bytes_per_token: int
    fingerprint: bytes
    video_token_id: int | None = None
    kernels: tuple[str, ...] = ()

    @property
    def has_images(self) -> bool:
        """Whether the model sees pictures."""
        return self.image_token_id is not None
