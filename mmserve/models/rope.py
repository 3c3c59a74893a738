"""Rotary embeddings: how config.json spells them, and the angle of each pair."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmserve.models.refusal import refuse

__all__ = ["RopeConfig", "parse_ropes", "rope_frequencies", "turning_layers"]

Config = Mapping[str, Any]

_KINDS = ("default", "linear", "llama3", "longrope", "yarn")
_SAME_AS_DEFAULT = ("mrope", "dynamic")
"""`mrope` only says that there are sections; `dynamic` stretches only what is longer than
`max_position_embeddings`, and no sequence is."""
_PARTIAL = ("phi3",)
"""Families that may turn a part of each head only."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding of a layer.

    Args:
        theta: base of the frequencies.
        kind: how they are stretched for long contexts.
        factor: by how much; of `linear`, `llama3` and `yarn`.
        original_context: tokens that the model was first trained on.
        low: of `llama3` its low_freq_factor, of `yarn` beta_slow: turns within the original
            context below which a pair is stretched in full.
        high: high_freq_factor, beta_fast: turns above which a pair stays as it is.
        is_ramp_whole: of `yarn`: the ramp between them starts and ends at whole pairs.
        pair_factors: of `longrope`: stretch of each pair.
        share: part of a head that turns, its first dimensions.
        gain: what cosines and sines are multiplied by.
        axes: which position turns each pair: time (0), row (1) or column (2); empty: all turn
            by the one place in the sequence.
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    original_context: int = 8192
    low: float = 1.0
    high: float = 4.0
    is_ramp_whole: bool = True
    pair_factors: tuple[float, ...] = ()
    share: float = 1.0
    gain: float = 1.0
    axes: tuple[int, ...] = ()

    @property
    def reach(self) -> int:
        """Positions that a stretch was made for, where config.json may state fewer. Pure."""
        return round(self.original_context * self.factor) if self.kind == "yarn" else 0


def parse_ropes(
    family: str, config: Config, kinds: tuple[str, ...], context_length: int | None = None
) -> tuple[RopeConfig | None, ...]:
    """An entry a layer: its rotary embedding, or None for layers that have none.

    Args:
        family: the word that errors name.
        config: a text model's config.json over its family's defaults; either spelling:
            `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling`.
        kinds: each layer's, `full_attention` or `sliding_attention`.
        context_length: most tokens of a sequence; None: the model's. Chooses between the two
            sets of `longrope`.

    Pure. Raises UnsupportedModel.
    """
    by_kind = {
        kind: _parse(family, config, spec, context_length)
        for kind, spec in _specs(config).items()
    }
    ropes = [by_kind[kind] for kind in kinds]
    return tuple(
        rope if has_rope else None
        for rope, has_rope in zip(ropes, turning_layers(config, len(kinds)), strict=True)
    )


def _specs(config: Config) -> dict[str, dict[str, Any]]:
    """Parameters by kind of layer; sliding layers may have a base of their own."""
    given = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or {}
    if not isinstance(scaling, Mapping):
        refuse(str(config.get("model_type")), f"rope_scaling {scaling!r}, which is no object")
    full: dict[str, Any] = dict(scaling)
    sliding = full
    if "rope_local_base_freq" in config:
        sliding = {"rope_theta": config["rope_local_base_freq"]}
    if "full_attention" in given or "sliding_attention" in given:
        full = {**full, **(given.get("full_attention") or {})}
        sliding = {**sliding, **(given.get("sliding_attention") or {})}
    else:
        full = {**full, **given}
        sliding = full if "rope_local_base_freq" not in config else sliding
    base = config.get("rope_theta") or 10000.0
    return {
        "full_attention": {"rope_theta": base, **full},
        "sliding_attention": {"rope_theta": base, **sliding},
    }


def turning_layers(config: Config, num_layers: int) -> list[bool]:
    """Whether each layer has a rotary embedding. Pure."""
    flags = config.get("no_rope_layers")
    if flags:
        return [bool(flag) for flag in flags[:num_layers]]
    interval = int(config.get("no_rope_layer_interval") or 0)
    return [interval == 0 or (i + 1) % interval != 0 for i in range(num_layers)]


def _parse(
    family: str, config: Config, spec: Mapping[str, Any], context_length: int | None
) -> RopeConfig:
    kind = str(spec.get("rope_type") or spec.get("type") or "default")
    if kind in _SAME_AS_DEFAULT:
        kind = "default"
    if kind == "su" or (kind == "yarn" and "long_factor" in spec):  # first names of longrope
        kind = "longrope"
    if kind not in _KINDS:
        refuse(family, f"rope type {kind!r}; served are {', '.join(_KINDS)}")
    share = float(spec.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1)
    if share != 1.0 and family not in _PARTIAL:
        refuse(family, "partial rotary embedding")
    if kind in _BY_FACTOR and not spec.get("factor"):
        refuse(family, f"rope type {kind!r} without a factor")
    original, longest = _contexts(config, spec)
    low, high = ("beta_slow", "beta_fast") if kind == "yarn" else _LLAMA3_BOUNDS
    factor = float(spec.get("factor") or (longest / original if kind in _BY_CONTEXT else 1.0))
    reach = "long" if (context_length or longest) > original else "short"
    rope = RopeConfig(
        theta=float(spec["rope_theta"]),
        kind=kind,
        factor=factor,
        original_context=original,
        low=float(spec.get(low) or 1.0),
        high=float(spec.get(high) or (32.0 if kind == "yarn" else 4.0)),
        is_ramp_whole=bool(spec.get("truncate", True)),
        pair_factors=_pair_factors(family, kind, spec, reach),
        share=share,
        gain=_gain(kind, factor, original, spec),
        axes=_axes(spec),
    )
    _check_pairs(family, config, rope)
    return rope


def _check_pairs(family: str, config: Config, rope: RopeConfig) -> None:
    """Raise UnsupportedModel where something is said of another number of pairs."""
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    num_pairs = int(size * rope.share) // 2
    for what, said in (("longrope factors", rope.pair_factors), ("mrope_section", rope.axes)):
        if said and len(said) != num_pairs:
            refuse(family, f"{what} of {len(said)} rotary pairs, a head turns {num_pairs}")


_LLAMA3_BOUNDS = ("low_freq_factor", "high_freq_factor")
_BY_FACTOR = ("linear", "llama3")
_BY_CONTEXT = ("longrope", "yarn")
"""Kinds whose factor, if none is given, is that between longest and original context."""


def _contexts(config: Config, spec: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens of the original training and of the longest sequence."""
    longest = int(config["max_position_embeddings"])
    keys = "original_max_position_embeddings"
    return int(config.get(keys) or spec.get(keys) or longest), longest


def _pair_factors(
    family: str, kind: str, spec: Mapping[str, Any], reach: str
) -> tuple[float, ...]:
    """The set of `longrope` for `short` or `long` contexts."""
    if kind != "longrope":
        return ()
    name = f"{reach}_factor"
    if not spec.get(name):
        refuse(family, f"rope type 'longrope' without {name}")
    return tuple(float(factor) for factor in spec[name])


def _gain(kind: str, factor: float, original: int, spec: Mapping[str, Any]) -> float:
    """What cosines and sines are multiplied by, so that attention stays as sharp."""
    if kind not in _BY_CONTEXT:
        return 1.0
    given = spec.get("attention_factor")
    if given is not None:
        return float(given)
    if kind == "longrope":
        return math.sqrt(1 + max(math.log(factor), 0.0) / math.log(original))
    over, under = spec.get("mscale"), spec.get("mscale_all_dim")
    if over and under:
        return _sharpness(factor, float(over)) / _sharpness(factor, float(under))
    return _sharpness(factor, 1.0)


def _sharpness(factor: float, scale: float) -> float:
    return 0.1 * scale * max(math.log(factor), 0.0) + 1.0


def _axes(spec: Mapping[str, Any]) -> tuple[int, ...]:
    """The axis of each rotary pair: three runs, or taken in turns as long as they last."""
    sections = [int(size) for size in spec.get("mrope_section") or ()]
    if not spec.get("mrope_interleaved"):
        return tuple(axis for axis, size in enumerate(sections) for _ in range(size))
    axes = [0] * sum(sections)
    for axis in (1, 2):
        for place in range(axis, 3 * sections[axis], 3):
            axes[place] = axis
    return tuple(axes)


def rope_frequencies(rope: RopeConfig, head_size: int) -> Tensor:
    """float32 [share * D / 2] angle per position of each pair. Pure.

    Source: RoFormer (2021); `linear` is position interpolation (2023), `llama3` the piecewise
    stretch of the Llama 3.1 release (2024), `yarn` YaRN (2023), section 3.2, `longrope`
    LongRoPE (2024), section 3.
    """
    size = int(head_size * rope.share)
    exponents = torch.arange(0, size, 2, dtype=torch.float32) / size
    plain = 1.0 / rope.theta**exponents
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "longrope":
        return plain / torch.tensor(rope.pair_factors)
    if rope.kind == "llama3":
        turns = rope.original_context * plain / (2 * math.pi)
        kept = ((turns - rope.low) / (rope.high - rope.low)).clamp(0, 1)
    elif rope.kind == "yarn":
        kept = _yarn_kept(rope, size)
    else:
        return plain
    return (1 - kept) * plain / rope.factor + kept * plain


def _yarn_kept(rope: RopeConfig, size: int) -> Tensor:
    """float32 [size / 2] how much of each pair's own frequency stays, a ramp over the pairs."""
    per_pair = size / (2 * math.log(rope.theta))
    first, last = (
        per_pair * math.log(rope.original_context / (turns * 2 * math.pi))
        for turns in (rope.high, rope.low)
    )
    if rope.is_ramp_whole:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, size - 1)
    width = last - first or 0.001
    pairs = torch.arange(size // 2, dtype=torch.float32)
    return 1 - ((pairs - first) / width).clamp(0, 1)
