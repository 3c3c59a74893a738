"""Reading checkpoints: one canonical name per tensor, whatever the file calls it.

    file's name                                            canonical name
    model.layers.0.…            language_model.model.…     text.layers.0.…
    model.language_model.…      lm_head.weight             text.… ; lm_head.weight
    vision_tower.vision_model.… model.vision_tower.…       vision.…
    multi_modal_projector.…     model.multi_modal_…        projector.…

Older and newer releases of transformers spell them differently; all are accepted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from mmserve.core import WeightMismatch
from mmserve.kernels import Ops, Product, TorchOps
from mmserve.models.shards import opened_weights, tensor_files

__all__ = ["Product", "SafetensorsSource", "TensorSource", "Weights", "canonical_name"]

_RENAMES = (
    (re.compile(r"^(model\.)?language_model\.lm_head\."), "lm_head."),
    (re.compile(r"^(model\.)?language_model\.(model\.)?"), "text."),
    (re.compile(r"^(model\.)?text_model\."), "text."),
    (re.compile(r"^(model\.)?vision_tower\.(vision_model\.)?"), "vision."),
    (re.compile(r"^(model\.)?(visual|vision_model)\."), "vision."),
    (re.compile(r"^(model\.)?(multi_modal_projector|connector)\."), "projector."),
    (re.compile(r"^(model\.)?image_newline$"), "projector.newline"),
    (re.compile(r"^lm_head\."), "lm_head."),
    (re.compile(r"^(model\.)?"), "text."),
)
_DERIVED = re.compile(r"(rotary_emb\.inv_freq|position_ids)$")


def canonical_name(name: str) -> str:
    """The one name a tensor has here. Pure."""
    for pattern, prefix in _RENAMES:
        match = pattern.match(name)
        if match:
            return prefix + name[match.end() :]
    return name


class TensorSource(Protocol):
    """Where tensors come from, by canonical name."""

    @property
    def names(self) -> Mapping[str, str]:
        """The file's own spelling of each canonical name."""
        ...

    def read(self, name: str) -> Tensor:
        """The tensor of a canonical name. Pure."""
        ...


class SafetensorsSource:
    """Tensors of a Hugging Face directory, in one file or in shards.

    Raises:
        ModelRefused: no weights are there, or not all, or a file is not whole.
    """

    def __init__(self, directory: Path) -> None:
        self._files = tensor_files(directory)
        self._names = {canonical_name(own): own for own in self._files}

    @property
    def names(self) -> Mapping[str, str]:
        """See `TensorSource`."""
        return self._names

    def read(self, name: str) -> Tensor:
        """See `TensorSource`."""
        own = self._names[name]
        with opened_weights(self._files[own]) as file:
            tensor: Tensor = file.get_tensor(own)
        return tensor


class Weights:
    """Hands out a checkpoint's tensors, each checked, and knows at the end which were left.

    Args:
        source: where they come from.
        dtype: of everything handed out.
        device: where it goes.
        bits: of the decoder's matrices, 8 or 4; None: they are of `dtype`.
        ops: what lays out matrices for the device; None: torch's own products.
    """

    def __init__(
        self,
        source: TensorSource,
        dtype: torch.dtype,
        device: torch.device,
        *,
        bits: int | None = None,
        ops: Ops | None = None,
    ) -> None:
        self.ops = ops or TorchOps()
        self._source = source
        self._left = dict(source.names)
        self.dtype = dtype
        self.device = device
        self._bits = bits

    def has(self, name: str) -> bool:
        """Whether the checkpoint has the tensor. Pure."""
        return name in self._source.names

    def take(self, name: str, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
        """A tensor of this shape, in `dtype` or that of all. Raises WeightMismatch.

        Changes: counts it as used.
        """
        want = tuple(shape)
        own = self._source.names.get(name)
        if own is None:
            message = f"tensor {name!r} of shape {want} is missing"
            raise WeightMismatch(message, name=name, want=want, got=None)
        self._left.pop(name, None)
        tensor = self._source.read(name)
        got = tuple(tensor.shape)
        if got != want:
            message = f"tensor {own!r} has shape {got}, the configuration asks for {want}"
            raise WeightMismatch(message, name=own, want=want, got=got)
        if not tensor.is_floating_point():
            message = f"tensor {own!r} holds {tensor.dtype}, quantized weights are not read"
            raise WeightMismatch(message, name=own, want=self.dtype, got=tensor.dtype)
        return tensor.to(self.device, dtype or self.dtype).contiguous()

    def linear(
        self,
        names: Sequence[str],
        outputs: Sequence[int],
        inputs: int,
        *,
        has_bias: bool,
        activation: str | None = None,
    ) -> Product:
        """Layers of one input, fused along their outputs. Changes: counts them as used."""
        parts = zip(names, outputs, strict=True)
        weight = [self.take(f"{name}.weight", (size, inputs)) for name, size in parts]
        bias: list[Tensor] = []
        if has_bias:
            parts = zip(names, outputs, strict=True)
            bias = [self.take(f"{name}.bias", (size,)) for name, size in parts]
        whole, shift = _cat(weight), _cat(bias) if bias else None
        if names[0].startswith(("text.", "lm_head")):
            return self.product(whole, shift, activation=activation)
        return self.ops.linear(whole, shift, activation=activation)

    def product(
        self, weight: Tensor, bias: Tensor | None = None, *, activation: str | None = None
    ) -> Product:
        """A matrix of the decoder, in as many bits as its matrices are to have. Pure."""
        return self.ops.linear(weight, bias, activation=activation, bits=self._bits)

    def finish(self, *, ignored: Sequence[str] = ()) -> None:
        """Raise WeightMismatch if a tensor is left that no ignored prefix covers. Pure."""
        for name, own in self._left.items():
            if _DERIVED.search(name) or name.startswith(tuple(ignored)):
                continue
            message = f"tensor {own!r} belongs to no layer of this model"
            raise WeightMismatch(message, name=own, want=None, got=tuple(self._shape(name)))

    def _shape(self, name: str) -> torch.Size:
        return self._source.read(name).shape


def _cat(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
