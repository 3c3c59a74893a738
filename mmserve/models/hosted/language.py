"""A decoder made of transformers' modules, with attention over our KV store.

    embeddings [T, E] -> transformers' decoder, a batch row [1, T, E] -> outputs -> its head
                               '- attention function -> step's Attention

All tokens of a step are one row of transformers' batch: everything but attention treats each
token by itself, and positions say where each one stands.

Beside the lean decoder a step of a small Llama (8 layers of 512, one thread, AVX2) takes 1.3
times the processor time for 256 tokens of a prompt, 1.15 times for one row and 1.4 times for
eight: transformers' modules do not fuse their products, and the last layer computes what nobody
wants.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor

from mmserve.models.hosted.attending import (
    PROBING,
    SERVING,
    Hook,
    LayerFacts,
    Probe,
    StepHook,
    attend_with,
    implementation,
)
from mmserve.models.hosted.eyes import Foreign
from mmserve.models.ports import DecoderShape, PlainAttention

__all__ = ["HostedDecoder", "decoder_of"]


class HostedDecoder:
    """A `LanguageModel` on transformers' modules. Immutable.

    Args:
        model: of transformers, whole. Changes: its decoder attends through us from now on.

    Raises ValueError that says what cannot be done.
    """

    def __init__(self, model: Foreign) -> None:
        self._decoder = decoder_of(model)
        self._embedding = model.get_input_embeddings()
        self._head = _with_decoder(model, self._decoder, _given(self._decoder))
        embedded = self.embed(torch.zeros(2, dtype=torch.int64, device=model.device))
        layers = _probe_layers(self._decoder, embedded)
        attend_with(self._decoder, SERVING)
        first = layers[0]
        self._shape = DecoderShape(
            num_layers=len(layers),
            num_kv_heads=first.num_kv_heads,
            head_size=max(first.key_size, first.value_size),
            hidden_size=embedded.shape[1],
            vocab_size=self.logits(embedded).shape[1],
            max_positions=_max_positions(self._decoder.config),
            windows=tuple(layers[number].window for number in range(len(layers))),
            softcap=first.softcap,
        )

    @property
    def shape(self) -> DecoderShape:
        """See `LanguageModel.shape`."""
        return self._shape

    def embed(self, token_ids: Tensor) -> Tensor:
        """See `LanguageModel.embed`."""
        embedded: Tensor = self._embedding(token_ids[None])
        return embedded[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """See `LanguageModel.logits`: what the family's own head makes of them."""
        logits: Tensor = self._head(inputs_embeds=hidden[None], use_cache=False).logits
        return logits[0].float()

    def forward(
        self,
        hidden: Tensor,
        positions: Tensor,
        attention: PlainAttention,
        keep: Tensor,
        deep: Tensor | None = None,
    ) -> Tensor:
        """See `LanguageModel.forward`."""
        if deep is not None:
            raise ValueError("a hosted decoder takes no deep features")
        hook = StepHook(attention, self._shape.head_size)
        return _run(self._decoder, hidden, positions, hook)[keep]


def decoder_of(model: Foreign) -> Foreign:
    """The module of layers, from embeddings to normed outputs. Pure.

    Raises ValueError if there is none.
    """
    for found in (model.get_decoder(), model.base_model, getattr(model, "model", None)):
        decoder = getattr(found, "base_model", model)
        if decoder is not model:
            return decoder
    raise ValueError("its decoder is not a module of its own")


def _probe_layers(decoder: Foreign, hidden: Tensor) -> Mapping[int, LayerFacts]:
    """What each layer asks of attention, read from a run over embeddings [T, E].

    Pure. Raises ValueError that says what cannot be done.
    """
    probe = Probe()
    with implementation(decoder, PROBING):
        _run(decoder, hidden, torch.arange(len(hidden), device=hidden.device), probe)
    layers = probe.layers
    if not layers:
        raise ValueError("its layers compute attention themselves, with biases or kernels")
    if sorted(layers) != list(range(len(layers))):
        raise ValueError(f"of its layers only {sorted(layers)} attend")
    for number, layer in layers.items():
        for what in ("num_kv_heads", "key_size", "value_size", "softcap"):
            mine, other = getattr(layer, what), getattr(layers[0], what)
            if mine != other:
                raise ValueError(f"layer {number} has {what} {mine}, layer 0 has {other}")
    return layers


def _max_positions(config: Foreign) -> int:
    most = getattr(config, "max_position_embeddings", None)
    if not isinstance(most, int):
        raise ValueError("its configuration does not say max_position_embeddings")  # noqa: TRY004
    return most


def _run(decoder: Foreign, hidden: Tensor, positions: Tensor, hook: Hook) -> Tensor:
    """[T, E] outputs of all tokens."""
    found = decoder(
        inputs_embeds=hidden[None],
        position_ids=positions[None],
        use_cache=False,
        **{SERVING: hook},
    )
    outputs: Tensor = found.last_hidden_state
    return outputs[0]


def _with_decoder(model: Foreign, decoder: Foreign, other: Foreign) -> Foreign:
    """`model` with another module in its decoder's place; all else is shared. Pure."""
    path = next(name for name, module in model.named_modules() if module is decoder)
    whole = _shallow(model)
    parent = whole
    *above, last = path.split(".")
    for name in above:
        parent._modules[name] = _shallow(parent._modules[name])
        parent = parent._modules[name]
    parent._modules[last] = other
    return whole


def _shallow(module: Foreign) -> Foreign:
    """A module that shares everything with `module` but the table of its parts. Pure."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    return twin


def _given(decoder: Foreign) -> Foreign:
    """A twin of `decoder` that gives back as outputs what it gets as embeddings. Pure."""
    from transformers.modeling_outputs import MoeModelOutputWithPast  # noqa: PLC0415 - heavy

    def forward(*_: Foreign, inputs_embeds: Tensor, **__: Foreign) -> Foreign:
        outputs = MoeModelOutputWithPast(last_hidden_state=inputs_embeds)
        outputs.cross_attentions = None
        return outputs

    twin = _shallow(decoder)
    twin.forward = forward
    return twin
