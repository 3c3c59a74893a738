"""Picture encoders made of transformers' modules: tower, projector, separators.

The checkpoint is read into the family's own class with no decoder layers, so that only what
sees is loaded; the decoder is somebody else's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmserve.core import WeightMismatch
from mmserve.models.checkpoint import Checkpoint
from mmserve.models.placing import placed
from mmserve.models.ports import Inputs
from mmserve.models.weights import canonical_name

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Features", "Foreign", "HostedEyes", "Tensors", "quiet_loading"]

Foreign = Any
"""A module, class or configuration of transformers, whose types are not known here."""

Tensors = Mapping[str, Tensor]
"""Inputs of one item on the device: floats in the model's dtype, integers int64."""

Features = Callable[[Foreign, Sequence[Tensors]], list[Tensor]]
"""A family's way to encode items with its model, see `PictureEncoder.encode`."""


class HostedEyes:
    """A `PictureEncoder` on transformers' modules. Immutable.

    Args:
        checkpoint: of a family with a class of its own for image-text-to-text.
        features: how the family encodes items, several at once.
        model: the family's model if it is loaded already, with whatever else it has.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        features: Features,
        model: Foreign = None,
    ) -> None:
        self._model = _load_eyes(checkpoint) if model is None else model
        self._features = features
        self._checkpoint = checkpoint

    def encode(self, items: Sequence[Inputs]) -> list[Tensor]:
        """See `PictureEncoder.encode`."""
        return self._features(self._model, [self._tensors(item) for item in items])

    def _tensors(self, item: Inputs) -> Tensors:
        dtype, device = self._checkpoint.dtype, self._checkpoint.device
        tensors: dict[str, Tensor] = {}
        for name, array in item.items():
            tensor = placed(array, device)
            tensors[name] = tensor.to(dtype if tensor.is_floating_point() else torch.int64)
        return tensors


def _load_eyes(checkpoint: Checkpoint) -> Foreign:
    """The family's model without decoder layers, embeddings and logits."""
    from transformers import AutoConfig, AutoModelForImageTextToText  # noqa: PLC0415 - heavy

    with quiet_loading():
        config = AutoConfig.from_pretrained(checkpoint.path)
    text = config.get_text_config()
    text.num_hidden_layers = 0
    if getattr(text, "layer_types", None) is not None:
        text.layer_types = []
    auto: Foreign = AutoModelForImageTextToText
    with quiet_loading():
        model, report = auto.from_pretrained(
            checkpoint.path, config=config, dtype=checkpoint.dtype, output_loading_info=True
        )
    names = sorted(report["missing_keys"])
    missing = [name for name in names if canonical_name(name) != "lm_head.weight"]
    if missing:
        message = f"tensor {missing[0]!r} is missing"
        raise WeightMismatch(message, name=missing[0], want=None, got=None)
    model.lm_head = None
    for name in ("language_model", "text_model"):
        if hasattr(model.model, name):
            setattr(model.model, name, None)
    return model.to(checkpoint.device).eval()


@contextmanager
def quiet_loading() -> Iterator[None]:
    """No bars and no warnings inside. Changes: transformers' verbosity, for that time."""
    from transformers.utils import logging  # noqa: PLC0415 - heavy

    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()
