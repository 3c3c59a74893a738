"""Our attention as an attention function of transformers, and what its modules ask of it.

    decoder(..., mmserve=hook) -> each layer -> _attend(module, q, k, v, mask) -> hook

The step's hook travels through the call's keywords, so nothing is global but two names: under
"mmserve" transformers builds no mask, because the step knows who sees whom; under
"mmserve-probe" a mask is one number that says how far back a layer sees.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - the name every torch reader knows
from torch import Tensor

from mmserve.models.hosted.eyes import Foreign
from mmserve.models.ports import PlainAttention

__all__ = [
    "PROBING",
    "SERVING",
    "Hook",
    "LayerFacts",
    "Probe",
    "StepHook",
    "attend_with",
    "implementation",
]

SERVING = "mmserve"
PROBING = "mmserve-probe"
_HARMLESS = ("position_ids", "cache_position")
_WORDS = {"s_aux": "sinks", "position_bias": "biases of positions"}
_NO_WINDOW = 0
_LONGEST_PROBED = 1 << 20
"""Places of a sequence up to which a mask is read; no window in use is longer."""


class Hook(Protocol):
    """What the attention function of a call does."""

    def __call__(
        self,
        module: Foreign,
        states: tuple[Tensor, Tensor, Tensor],
        mask: Tensor | None,
        options: Mapping[str, Any],
    ) -> Tensor:
        """Attend.

        Args:
            module: the attention layer, which knows its number.
            states: queries [1, H, T, D], keys [1, G, T, D], values [1, G, T, Dv].
            mask: what the mask function gave.
            options: the other keywords of the layer: scaling, softcap, s_aux, ...

        Returns:
            [1, T, H, Dv].
        """
        ...


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """What a layer asked for when it was probed.

    Args:
        num_kv_heads: key heads.
        key_size: of a key head.
        value_size: of a value head.
        window: tokens that a query sees, itself included, or None.
        softcap: bound of scores, or None.
    """

    num_kv_heads: int
    key_size: int
    value_size: int
    window: int | None
    softcap: float | None


@dataclass(slots=True)
class Probe:
    """A hook that attends to nothing and notes what each layer asks for, in `layers`.

    Raises ValueError, which says what cannot be done.
    """

    layers: dict[int, LayerFacts] = field(default_factory=dict)

    def __call__(
        self,
        module: Foreign,
        states: tuple[Tensor, Tensor, Tensor],
        mask: Tensor | None,
        options: Mapping[str, Any],
    ) -> Tensor:
        """See `Hook`. Changes: `layers`."""
        query, key, value = states
        number = _number(module)
        if number in self.layers:
            raise ValueError(f"layer {number} attends twice")
        for name, option in options.items():
            if torch.is_tensor(option) and name not in _HARMLESS:
                raise ValueError(f"layer {number} attends with {_WORDS.get(name, name)}")
        window = _NO_WINDOW if mask is None else _window(number, mask)
        self.layers[number] = LayerFacts(
            num_kv_heads=key.shape[1],
            key_size=key.shape[3],
            value_size=value.shape[3],
            window=window or None,
            softcap=options.get("softcap"),
        )
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])


@dataclass(frozen=True, slots=True)
class StepHook:
    """A hook that attends to the KV store.

    Args:
        attention: of the step.
        head_size: of the store; smaller keys and values are padded with zeros.
    """

    attention: PlainAttention
    head_size: int

    def __call__(
        self,
        module: Foreign,
        states: tuple[Tensor, Tensor, Tensor],
        mask: Tensor | None,
        options: Mapping[str, Any],
    ) -> Tensor:
        """See `Hook`. Changes: the KV store."""
        if mask is not None:
            raise ValueError("the model brings a mask of its own")
        query, key, value = states
        number, size = _number(module), self.head_size
        scaling = options.get("scaling")
        scale = query.shape[3] ** -0.5 if scaling is None else scaling
        self.attention.write(number, _tokens(key, size), _tokens(value, size))
        queries = _tokens(query, size).to(value.dtype) * (scale * size**0.5)
        return self.attention.attend(number, queries)[None, ..., : value.shape[3]]


@contextmanager
def implementation(decoder: Foreign, name: str) -> Iterator[None]:
    """Inside, `decoder` attends with the function of this name. Changes: its configurations."""
    before = [(config, config._attn_implementation) for config in _configs(decoder)]
    attend_with(decoder, name)
    try:
        yield
    finally:
        for config, old in before:
            config._attn_implementation = old


def attend_with(decoder: Foreign, name: str) -> None:
    """Let `decoder` attend with the function of this name. Changes: its configurations."""
    _register()
    for config in _configs(decoder):
        config._attn_implementation = name


def _configs(decoder: Foreign) -> list[Foreign]:
    """Every configuration that a module of `decoder` looks at. Pure."""
    found = (getattr(module, "config", None) for module in decoder.modules())
    return list({id(config): config for config in found if config is not None}.values())


def _register() -> None:
    """Make both names known to transformers. Changes: its registries, to the same each time."""
    from transformers import AttentionInterface, AttentionMaskInterface  # noqa: PLC0415

    AttentionInterface.register(SERVING, _attend)
    AttentionInterface.register(PROBING, _attend)
    AttentionMaskInterface.register(SERVING, _no_mask)
    AttentionMaskInterface.register(PROBING, _how_far)


def _attend(
    module: Foreign,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Foreign,
) -> tuple[Tensor, None]:
    """The attention function: hands on to the call's hook."""
    hook: Hook | None = options.pop(SERVING, None)
    if hook is None:
        raise ValueError("its modules do not hand the step's attention to their layers")
    return hook(module, (query, key, value), attention_mask, options), None


def _no_mask(**_: Foreign) -> None:
    """The mask function of steps."""


def _how_far(*, mask_function: Foreign, config: Foreign, **_: Foreign) -> Tensor:
    """The mask function of probes: int64 [1, 1, 1, 1], the window, or 0 if there is none.

    The rule is asked of a few queries: which keys do they see? Raises ValueError if that is
    not "all up to themselves" or "the last n".
    """
    limit = min(int(getattr(config, "max_position_embeddings", None) or 4096), _LONGEST_PROBED)
    keys = torch.arange(limit)
    zero = torch.zeros((), dtype=torch.int64)

    def seen(place: int) -> Tensor:
        rule = mask_function(zero, zero, torch.tensor(place), keys)
        return torch.as_tensor(rule, dtype=torch.bool).expand(limit)

    window = int(seen(limit - 1).sum())
    for place in {0, 1, limit // 3, limit // 2, limit - 2, limit - 1}:
        wanted = (keys <= place) & (keys > place - window)
        if not torch.equal(seen(place), wanted):
            raise ValueError("a layer sees neither all tokens before it nor the last few")
    return torch.full((1, 1, 1, 1), _NO_WINDOW if window == limit else window)


def _window(number: int, mask: Tensor) -> int:
    if mask.numel() != 1:
        raise ValueError(f"layer {number} attends with a mask or biases of its own")
    return int(mask)


def _number(module: Foreign) -> int:
    number = getattr(module, "layer_idx", None)
    if not isinstance(number, int):
        raise ValueError(f"{type(module).__name__} does not know its layer's number")  # noqa: TRY004
    return number


def _tokens(states: Tensor, size: int) -> Tensor:
    """[T, heads, size] of [1, heads, T, D], zeros behind. Pure."""
    turned = states[0].transpose(0, 1)
    return turned if turned.shape[2] == size else F.pad(turned, (0, size - turned.shape[2]))
