"""What the runner asks of a loaded model, whoever computes it.

token ids --embed--> [T, E] <-- features of PictureEncoder.encode
[T, E], positions, Attention --forward--> [Q, E] --logits--> [Q, V]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray
from torch import Tensor

from mmserve.kernels import LayerAttention

__all__ = [
    "Attention",
    "DecoderShape",
    "Inputs",
    "LanguageModel",
    "Model",
    "PictureEncoder",
    "PlainAttention",
]

Inputs = Mapping[str, NDArray[Any]]
"""What a family's processor made of one item."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """Sizes that the runner's stores and plans follow.

    Args:
        num_layers: layers that attend, each with keys and values of its own.
        num_kv_heads: of every layer.
        head_size: of every layer, values included.
        hidden_size: width of embeddings.
        vocab_size: rows of the logits.
        max_positions: longest sequence it was made for.
        windows: an entry a layer: how many tokens a query sees, itself included, or None.
        softcap: bound of attention scores, or None.
        num_deep: sets of features that early layers add to picture tokens later on.
        has_grid_positions: whether positions are int64 [3, T]: time, row, column.
    """

    num_layers: int
    num_kv_heads: int
    head_size: int
    hidden_size: int
    vocab_size: int
    max_positions: int
    windows: tuple[int | None, ...]
    softcap: float | None = None
    num_deep: int = 0
    has_grid_positions: bool = False


class PlainAttention(Protocol):
    """What a decoder asks of the step it runs in, if it turns queries and keys itself.

    Token order is the step's. Scores are scaled by D ** -0.5; a decoder that wants another
    scale puts it into its queries.
    """

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Store [T, G, D] keys and values. Changes: the KV store."""
        ...

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        """[T, H, D] outputs of [T, H, D] queries of all tokens. Pure."""
        ...

    def attend_kept(self, layer: int, queries: Tensor) -> Tensor:
        """[Q, H, D] outputs of [Q, H, D] queries of the tokens whose output is wanted. Pure."""
        ...


class Attention(PlainAttention, LayerAttention, Protocol):
    """What a decoder asks of the step it runs in, with the turning left to the kernels."""


class LanguageModel(Protocol):
    """A loaded decoder. Immutable; the KV it needs lives with the caller."""

    @property
    def shape(self) -> DecoderShape:
        """Sizes of it."""
        ...

    def embed(self, token_ids: Tensor) -> Tensor:
        """[T, E] embeddings of int64 [T] ids in [0, V). Pure."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """[Q, V] float32 logits of [Q, E] outputs of `forward`. Pure."""
        ...

    def forward(
        self,
        hidden: Tensor,
        positions: Tensor,
        attention: Attention,
        keep: Tensor,
        deep: Tensor | None = None,
    ) -> Tensor:
        """Run all layers over the tokens of a step.

        Args:
            hidden: [T, E] embeddings. Changes: may be overwritten.
            positions: int64 [T], each token's place in its sequence, or [3, T].
            attention: the step's attention.
            keep: int64 [Q], tokens whose output is wanted.
            deep: [num_deep, T, E] added behind the first layers; None: nothing is.

        Returns:
            [Q, E] normed outputs. Changes: the KV store, through `attention`.
        """
        ...


class PictureEncoder(Protocol):
    """A loaded tower with what joins it to the decoder. Immutable."""

    def encode(self, items: Sequence[Inputs]) -> list[Tensor]:
        """Features of items, [K, E * (1 + num_deep)] each: embeddings, then the deep sets.

        Encoded together or alone, an item has the same features within rounding. Pure.
        Raises ValueError for inputs of another shape.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A loaded model: a decoder, and a picture encoder if it sees pictures.

    Args:
        family: the word of config.json.
        decoder: its language side.
        pictures: its eyes.
        image_token_id: placeholder of pictures in its vocabulary.
    """

    family: str
    decoder: LanguageModel
    pictures: PictureEncoder | None = None
    image_token_id: int | None = None
