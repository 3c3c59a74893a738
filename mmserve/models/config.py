"""A checkpoint's config.json as frozen values; what is not supported is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from mmserve.core import UnsupportedModel

__all__ = ["DecoderConfig", "LlavaConfig", "RopeConfig", "TowerConfig", "refuse"]

Config = Mapping[str, Any]

_TEXT_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
    },
    "mistral": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    "qwen2": {
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 32768,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    "qwen3": {
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "max_position_embeddings": 32768,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
}
_TOWER_DEFAULTS: dict[str, dict[str, Any]] = {
    "clip_vision_model": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_channels": 3,
        "image_size": 224,
        "patch_size": 32,
        "hidden_act": "quick_gelu",
        "layer_norm_eps": 1e-5,
    },
    "siglip_vision_model": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_channels": 3,
        "image_size": 224,
        "patch_size": 16,
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6,
    },
}
_TOWER_ACTIVATIONS = ("quick_gelu", "gelu", "gelu_pytorch_tanh", "gelu_new", "relu", "silu")


def refuse(architecture: str, reason: str) -> NoReturn:
    """Raise UnsupportedModel that names what is not supported."""
    message = f"model of type {architecture!r} cannot be served: {reason}"
    raise UnsupportedModel(message, architecture=architecture, reason=reason)


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding: base `theta`, and how frequencies are stretched for long contexts.

    `axes` says which position turns each pair: time (0), row (1) or column (2); empty: all turn
    by the one place in the sequence.
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192
    axes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A Llama-like decoder.

    `windows` has an entry a layer: how many tokens a query sees, itself included, or None.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    max_positions: int
    rms_eps: float
    rope: RopeConfig
    windows: tuple[int | None, ...]
    has_qkv_bias: bool = False
    has_out_bias: bool = False
    has_mlp_bias: bool = False
    has_qk_norm: bool = False
    is_tied: bool = False
    num_deep: int = 0

    @classmethod
    def parse(cls, config: Config) -> DecoderConfig:
        """From a text model's config.json. Pure. Raises UnsupportedModel."""
        family = str(config.get("model_type", "llama"))
        if family not in _TEXT_DEFAULTS:
            refuse(family, f"text models served are {', '.join(sorted(_TEXT_DEFAULTS))}")
        full = {**_TEXT_DEFAULTS[family], **config}
        _check_text(family, full)
        has_bias = bool(full.get("attention_bias", False))
        num_heads = int(full["num_attention_heads"])
        return cls(
            family=family,
            vocab_size=int(full["vocab_size"]),
            hidden_size=int(full["hidden_size"]),
            intermediate_size=int(full["intermediate_size"]),
            num_layers=int(full["num_hidden_layers"]),
            num_heads=num_heads,
            num_kv_heads=int(full.get("num_key_value_heads") or num_heads),
            head_size=int(full.get("head_dim") or full["hidden_size"] // num_heads),
            max_positions=int(full["max_position_embeddings"]),
            rms_eps=float(full.get("rms_norm_eps", 1e-6)),
            rope=_rope(family, full),
            windows=_windows(family, full),
            has_qkv_bias=family == "qwen2" or has_bias,
            has_out_bias=has_bias and family != "qwen2",
            has_mlp_bias=bool(full.get("mlp_bias", False)),
            has_qk_norm=family == "qwen3",
            is_tied=bool(full.get("tie_word_embeddings", False)),
        )


@dataclass(frozen=True, slots=True)
class TowerConfig:
    """A CLIP or SigLIP picture encoder."""

    kind: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_channels: int
    image_size: int
    patch_size: int
    activation: str
    norm_eps: float

    @property
    def has_class_token(self) -> bool:
        """Whether a learned token stands before the patches (CLIP)."""
        return self.kind == "clip_vision_model"

    @property
    def num_patches(self) -> int:
        """Patches of one picture."""
        return (self.image_size // self.patch_size) ** 2

    @classmethod
    def parse(cls, config: Config) -> TowerConfig:
        """From a vision_config. Pure. Raises UnsupportedModel."""
        kind = str(config.get("model_type", "clip_vision_model"))
        if kind not in _TOWER_DEFAULTS:
            refuse(kind, f"vision towers served are {', '.join(sorted(_TOWER_DEFAULTS))}")
        full = {**_TOWER_DEFAULTS[kind], **config}
        if full["hidden_act"] not in _TOWER_ACTIVATIONS:
            refuse(kind, f"activation {full['hidden_act']!r}")
        return cls(
            kind=kind,
            hidden_size=int(full["hidden_size"]),
            intermediate_size=int(full["intermediate_size"]),
            num_layers=int(full["num_hidden_layers"]),
            num_heads=int(full["num_attention_heads"]),
            num_channels=int(full["num_channels"]),
            image_size=int(full["image_size"]),
            patch_size=int(full["patch_size"]),
            activation=str(full["hidden_act"]),
            norm_eps=float(full["layer_norm_eps"]),
        )


@dataclass(frozen=True, slots=True)
class LlavaConfig:
    """LLaVA-1.5: tower, two-layer projector, decoder.

    `feature_depths` says after how many tower layers features are taken; several are joined.
    """

    text: DecoderConfig
    tower: TowerConfig
    feature_depths: tuple[int, ...]
    keeps_class_token: bool
    projector_activation: str
    has_projector_bias: bool
    image_token_id: int

    @property
    def tokens_per_image(self) -> int:
        """Tokens that stand for one picture."""
        strips = 0 if self.keeps_class_token else 1
        return self.tower.num_patches + int(self.tower.has_class_token) - strips

    @classmethod
    def parse(cls, config: Config) -> LlavaConfig:
        """From config.json. Pure. Raises UnsupportedModel."""
        text = dict(config.get("text_config") or {})
        text["tie_word_embeddings"] = bool(
            config.get("tie_word_embeddings") or text.get("tie_word_embeddings")
        )
        tower = TowerConfig.parse(config.get("vision_config") or _LLAVA_TOWER)
        layers = config.get("vision_feature_layer", -2)
        strategy = config.get("vision_feature_select_strategy", "default")
        if strategy not in ("default", "full"):
            refuse("llava", f"vision_feature_select_strategy {strategy!r}")
        activation = str(config.get("projector_hidden_act", "gelu"))
        if activation not in _TOWER_ACTIVATIONS:
            refuse("llava", f"projector activation {activation!r}")
        token = config.get("image_token_id", config.get("image_token_index", 32000))
        return cls(
            text=DecoderConfig.parse(text),
            tower=tower,
            feature_depths=_depths([layers] if isinstance(layers, int) else layers, tower),
            keeps_class_token=strategy == "full",
            projector_activation=activation,
            has_projector_bias=bool(config.get("multimodal_projector_bias", True)),
            image_token_id=int(token),
        )


_LLAVA_TOWER = {
    "model_type": "clip_vision_model",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
}


def _check_text(family: str, config: Config) -> None:
    """Raise UnsupportedModel for what the decoder does not compute."""
    if config.get("hidden_act", "silu") != "silu":
        refuse(family, f"activation {config['hidden_act']!r}")
    if config.get("quantization_config"):
        refuse(family, "quantized weights (quantization_config)")
    if config.get("num_experts") or config.get("num_local_experts"):
        refuse(family, "mixture of experts")


def _rope(family: str, config: Config) -> RopeConfig:
    """Either spelling: `rope_parameters` (transformers 5), `rope_theta` and `rope_scaling`."""
    spec: dict[str, Any] = dict(config.get("rope_scaling") or {})
    spec.update(config.get("rope_parameters") or {})
    theta = float(spec.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = str(spec.get("rope_type", spec.get("type", "default")))
    if kind not in ("default", "linear", "llama3"):
        refuse(family, f"rope type {kind!r}; served are default, linear, llama3")
    share = spec.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    if share != 1.0:
        refuse(family, "partial rotary embedding")
    return RopeConfig(
        axes=_axes(spec),
        theta=theta,
        kind=kind,
        factor=float(spec.get("factor", 1.0)),
        low_freq_factor=float(spec.get("low_freq_factor", 1.0)),
        high_freq_factor=float(spec.get("high_freq_factor", 4.0)),
        original_context=int(spec.get("original_max_position_embeddings", 8192)),
    )


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


def _windows(family: str, config: Config) -> tuple[int | None, ...]:
    num_layers = int(config["num_hidden_layers"])
    window = config.get("sliding_window")
    if family == "llama" or window is None:
        return (None,) * num_layers
    if family == "mistral":
        return (int(window),) * num_layers
    if not config.get("use_sliding_window", False):
        return (None,) * num_layers
    kinds = config.get("layer_types") or [
        "sliding_attention" if i >= int(config["max_window_layers"]) else "full_attention"
        for i in range(num_layers)
    ]
    if set(kinds) - {"sliding_attention", "full_attention"}:
        refuse(family, f"layer types {sorted(set(kinds))}")
    return tuple(int(window) if kind == "sliding_attention" else None for kind in kinds)


def _depths(layers: list[int], tower: TowerConfig) -> tuple[int, ...]:
    """Layer numbers, negative ones from the end, as layers to run; 0 is before the first."""
    depths = tuple(layer if layer >= 0 else tower.num_layers + 1 + layer for layer in layers)
    if not all(0 <= depth <= tower.num_layers for depth in depths):
        refuse("llava", f"vision_feature_layer {layers} of {tower.num_layers} layers")
    return depths
