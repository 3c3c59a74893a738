"""A checkpoint's config.json as frozen values; what is not supported is refused by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmserve.models.refusal import refuse
from mmserve.models.rope import RopeConfig, parse_ropes, turning_layers
from mmserve.models.text_families import DEFAULTS, DIFFERENCES, SPELLINGS

__all__ = ["DecoderConfig", "LlavaConfig", "RopeConfig", "TowerConfig", "refuse"]

Config = Mapping[str, Any]

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
_TEXT_ACTIVATIONS = ("silu", "gelu_pytorch_tanh")
_FULL, _SLIDING = "full_attention", "sliding_attention"
_NEVER_SLIDING = ("llama", "gemma")
_ALWAYS_SLIDING = ("mistral", "phi3")
_GEMMAS = ("gemma", "gemma2", "gemma3")
_TOWER_ACTIVATIONS = ("quick_gelu", "gelu", "gelu_pytorch_tanh", "gelu_new", "relu", "silu")


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A Llama-like decoder: shapes, and how it differs from Llama.

    Args:
        family: the word of config.json.
        windows: an entry a layer: how many tokens a query sees, itself included, or None.
        ropes: an entry a layer: its rotary embedding, or None.
        activation: of the gates: `silu` or `gelu_pytorch_tanh`.
        embedding_scale: what embeddings of tokens are multiplied by; those of media are not.
        query_scale: what queries are multiplied by, over attention's own head_size ** -0.5.
        attention_softcap: bound of attention scores, or None.
        logit_softcap: bound of logits, or None.
        norm_offset: added to the stored gains of all norms.
        has_output_norms: whether what attention and MLP give is normed too.
        has_qk_norm: whether each head's queries and keys are normed.
        is_tied: whether logits come from the table of embeddings.
        num_deep: sets of features added behind the first layers.
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
    windows: tuple[int | None, ...]
    ropes: tuple[RopeConfig | None, ...]
    activation: str = "silu"
    embedding_scale: float = 1.0
    query_scale: float = 1.0
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    norm_offset: float = 0.0
    has_output_norms: bool = False
    has_qk_norm: bool = False
    has_qkv_bias: bool = False
    has_out_bias: bool = False
    has_mlp_bias: bool = False
    is_tied: bool = False
    num_deep: int = 0

    @classmethod
    def parse(cls, config: Config, *, context_length: int | None = None) -> DecoderConfig:
        """From a text model's config.json, or the text_config of a larger one.

        Args:
            config: its fields; `model_type` names the family.
            context_length: most tokens of a sequence, if fewer than the model's; some rotary
                embeddings depend on it.

        Pure. Raises UnsupportedModel.
        """
        word = str(config.get("model_type", "llama"))
        family = SPELLINGS.get(word, word)
        if family not in DEFAULTS:
            refuse(word, f"text models served are {', '.join(sorted(DEFAULTS))}")
        full = {**DEFAULTS.get(word, DEFAULTS[family]), **config}
        _check_text(family, full)
        fields = _shapes(full) | _biases(full) | _scales(family, full)
        kinds = _layer_kinds(family, full)
        window = full.get("sliding_window")
        fields["windows"] = tuple(window if kind == _SLIDING else None for kind in kinds)
        ropes = fields["ropes"] = parse_ropes(family, full, kinds, context_length)
        reaches = [rope.reach for rope in ropes if rope is not None]
        fields["max_positions"] = max(fields["max_positions"], *reaches, 0)
        fields["activation"] = _activation(family, full)
        return cls(family=family, **{**fields, **DIFFERENCES.get(family, {})})


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
    if config.get("quantization_config"):
        refuse(family, "quantized weights (quantization_config)")
    if config.get("num_experts") or config.get("num_local_experts"):
        refuse(family, "mixture of experts")
    if config.get("use_bidirectional_attention"):
        refuse(family, "attention to later tokens (use_bidirectional_attention)")
    if family == "gemma3" and config.get("attn_logit_softcapping") is not None:
        refuse(family, "bounded attention scores (attn_logit_softcapping)")


def _shapes(config: Config) -> dict[str, Any]:
    num_heads = int(config["num_attention_heads"])
    return {
        "vocab_size": int(config["vocab_size"]),
        "hidden_size": int(config["hidden_size"]),
        "intermediate_size": int(config["intermediate_size"]),
        "num_layers": int(config["num_hidden_layers"]),
        "num_heads": num_heads,
        "num_kv_heads": int(config.get("num_key_value_heads") or num_heads),
        "head_size": int(config.get("head_dim") or config["hidden_size"] // num_heads),
        "max_positions": int(config["max_position_embeddings"]),
        "rms_eps": float(config.get("rms_norm_eps", 1e-6)),
        "is_tied": bool(config.get("tie_word_embeddings", False)),
    }


def _biases(config: Config) -> dict[str, Any]:
    has_bias = bool(config.get("attention_bias", False))
    has_mlp_bias = bool(config.get("mlp_bias", False))
    return {"has_qkv_bias": has_bias, "has_out_bias": has_bias, "has_mlp_bias": has_mlp_bias}


def _scales(family: str, config: Config) -> dict[str, Any]:
    """Factors and bounds, of Gemma only; other families do not read these fields."""
    if family not in _GEMMAS:
        return {}
    shapes = _shapes(config)
    asked = float(config.get("query_pre_attn_scalar") or shapes["head_size"])
    return {
        "embedding_scale": math.sqrt(shapes["hidden_size"]),
        "query_scale": math.sqrt(shapes["head_size"] / asked),
        "attention_softcap": config.get("attn_logit_softcapping"),
        "logit_softcap": config.get("final_logit_softcapping"),
    }


def _activation(family: str, config: Config) -> str:
    name = str(config.get("hidden_activation") or config.get("hidden_act") or "silu")
    if family == "gemma" and name == "gelu":  # as its first release spelled it
        name = "gelu_pytorch_tanh"
    if name not in _TEXT_ACTIVATIONS:
        served = ", ".join(_TEXT_ACTIVATIONS)
        refuse(family, f"activation {name!r}; served are {served}")
    return name


def _layer_kinds(family: str, config: Config) -> tuple[str, ...]:
    """Each layer's kind, `full_attention` or `sliding_attention`."""
    num_layers = int(config["num_hidden_layers"])
    if config.get("sliding_window") is None or family in _NEVER_SLIDING:
        return (_FULL,) * num_layers
    if family in _ALWAYS_SLIDING:
        return (_SLIDING,) * num_layers
    if family not in _GEMMAS and not config.get("use_sliding_window", False):
        return (_FULL,) * num_layers
    kinds = tuple(config.get("layer_types") or _derived_kinds(family, config, num_layers))
    if set(kinds) - {_FULL, _SLIDING} or len(kinds) != num_layers:
        refuse(family, f"layer types {sorted(set(kinds))} of {num_layers} layers")
    return kinds


def _derived_kinds(family: str, config: Config, num_layers: int) -> list[str]:
    """Kinds that a checkpoint without `layer_types` means."""
    layers = range(num_layers)
    if family in _GEMMAS:
        pattern = config.get("sliding_window_pattern")
        period = int(pattern or DEFAULTS[family]["sliding_window_pattern"])
        slides = [(i + 1) % period != 0 for i in layers]
    elif family == "smollm3":
        slides = [not has_rope for has_rope in turning_layers(config, num_layers)]
    else:
        slides = [i >= int(config["max_window_layers"]) for i in layers]
    return [_SLIDING if is_sliding else _FULL for is_sliding in slides]


def _depths(layers: list[int], tower: TowerConfig) -> tuple[int, ...]:
    """Layer numbers, negative ones from the end, as layers to run; 0 is before the first."""
    depths = tuple(layer if layer >= 0 else tower.num_layers + 1 + layer for layer in layers)
    if not all(0 <= depth <= tower.num_layers for depth in depths):
        refuse("llava", f"vision_feature_layer {layers} of {tower.num_layers} layers")
    return depths
