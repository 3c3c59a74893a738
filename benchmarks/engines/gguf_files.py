"""A seeded or real checkpoint as GGUF files for llama.cpp, from the same weights.

The text model of a Llama, or of a LLaVA beside a second file with its picture tower. Matrices
are float32 or Q8_0; gains and biases are float32 in either.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

__all__ = ["write_text_model", "write_tower"]

_Floats = NDArray[np.float32]

_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_TOWER_LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out",
    "layer_norm1": "ln1",
    "layer_norm2": "ln2",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}
_TOWER_TOP = {
    "vision_tower.embeddings.class_embedding": "v.class_embd",
    "vision_tower.embeddings.patch_embedding.weight": "v.patch_embd.weight",
    "vision_tower.embeddings.position_embedding.weight": "v.position_embd.weight",
    "vision_tower.pre_layrnorm.weight": "v.pre_ln.weight",
    "vision_tower.pre_layrnorm.bias": "v.pre_ln.bias",
    "multi_modal_projector.linear_1.weight": "mm.0.weight",
    "multi_modal_projector.linear_1.bias": "mm.0.bias",
    "multi_modal_projector.linear_2.weight": "mm.2.weight",
    "multi_modal_projector.linear_2.bias": "mm.2.bias",
}
_PRE_TOKENIZERS = {"llama": "smollm", "llava": "gpt-2"}
"""How llama.cpp calls the splitting of text, for SmolLM2 and for the seeded byte tokenizer."""


def write_text_model(source: Path, target: Path, *, is_int8: bool) -> None:
    """The decoder and tokenizer of a Hugging Face directory as one file.

    Args:
        source: a Llama, or a LLaVA with one, as `transformers` saves it.
        target: file to write.
        is_int8: matrices in Q8_0 (32 weights share a scale) instead of float32.

    Changes: writes `target`. Raises ValueError for another kind of model.
    """
    config = _read(source / "config.json")
    if config["model_type"] not in _PRE_TOKENIZERS:
        message = f"no GGUF export for {config['model_type']}"
        raise ValueError(message)
    text = config.get("text_config", config)
    writer = gguf.GGUFWriter(target, "llama")
    writer.add_name(source.name)
    _add_shape(writer, text)
    _add_tokenizer(writer, source, text, _PRE_TOKENIZERS[config["model_type"]])
    heads = {
        "attn_q": text["num_attention_heads"],
        "attn_k": text["num_key_value_heads"],
    }
    for name, values in _text_tensors(source, heads, is_tied=text["tie_word_embeddings"]):
        _add_tensor(writer, name, values, is_int8=is_int8)
    _finish(writer)


def write_tower(source: Path, target: Path) -> None:
    """The picture tower and the projector of a LLaVA in float32, for llama.cpp's mtmd.

    All layers are written; llama.cpp takes the features of the last but one by itself, which is
    what LLaVA does. The tower's last norm is left out, as llama.cpp would apply it to them.
    It also puts the class token behind the patches (llama-cpp-python 0.3.36), so the positions
    are turned by one: then features of patches are right to 5e-4 by norm. It still drops the
    first patch and takes the class token for the last, so answers differ from the model's.
    Changes: writes `target`.
    """
    config = _read(source / "config.json")
    tower, pictures = config["vision_config"], _read(source / "preprocessor_config.json")
    writer = gguf.GGUFWriter(target, "clip")
    writer.add_clip_has_vision_encoder(value=True)
    writer.add_clip_projector_type("mlp")
    writer.add_vision_image_size(tower["image_size"])
    writer.add_vision_patch_size(tower["patch_size"])
    writer.add_vision_embedding_length(tower["hidden_size"])
    writer.add_vision_feed_forward_length(tower["intermediate_size"])
    writer.add_vision_projection_dim(config["text_config"]["hidden_size"])
    writer.add_vision_block_count(tower["num_hidden_layers"])
    writer.add_vision_head_count(tower["num_attention_heads"])
    writer.add_vision_attention_layernorm_eps(tower["layer_norm_eps"])
    writer.add_vision_image_mean(pictures["image_mean"])
    writer.add_vision_image_std(pictures["image_std"])
    writer.add_vision_use_gelu(value=False)  # neither: CLIP's quick approximation
    for name, values in _tensors(source):
        own = _tower_name(name)
        if own == "v.position_embd.weight":
            values = np.concatenate([values[1:], values[:1]])
        if own is not None:
            _add_tensor(writer, own, values, is_int8=False)
    _finish(writer)


def _add_shape(writer: gguf.GGUFWriter, text: Mapping[str, Any]) -> None:
    writer.add_block_count(text["num_hidden_layers"])
    writer.add_context_length(text["max_position_embeddings"])
    writer.add_embedding_length(text["hidden_size"])
    writer.add_feed_forward_length(text["intermediate_size"])
    writer.add_head_count(text["num_attention_heads"])
    writer.add_head_count_kv(text["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(text["rms_norm_eps"])
    writer.add_vocab_size(text["vocab_size"])
    writer.add_rope_dimension_count(text["head_dim"])
    writer.add_rope_freq_base(text["rope_parameters"]["rope_theta"])


def _add_tokenizer(
    writer: gguf.GGUFWriter, source: Path, text: Mapping[str, Any], splitting: str
) -> None:
    tokenizer = _read(source / "tokenizer.json")
    special = {one["id"] for one in tokenizer["added_tokens"] if one["special"]}
    pieces = {number: piece for piece, number in tokenizer["model"]["vocab"].items()}
    pieces |= {one["id"]: one["content"] for one in tokenizer["added_tokens"]}
    kinds = [
        gguf.TokenType.CONTROL if number in special else gguf.TokenType.NORMAL
        for number in range(len(pieces))
    ]
    merges = [
        one if isinstance(one, str) else " ".join(one) for one in tokenizer["model"]["merges"]
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(splitting)
    writer.add_token_list([pieces[number] for number in range(len(pieces))])
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    template = source / "chat_template.jinja"
    if template.is_file():
        writer.add_chat_template(template.read_text(encoding="utf-8"))
    writer.add_add_space_prefix(value=False)
    writer.add_add_bos_token(value=_begins_with_bos(tokenizer))
    writer.add_bos_token_id(text["bos_token_id"])
    writer.add_eos_token_id(_first(text["eos_token_id"]))


def _begins_with_bos(tokenizer: Mapping[str, Any]) -> bool:
    """Whether the post-processor puts a token in front of each text. Pure."""
    after = tokenizer.get("post_processor") or {}
    return any("SpecialToken" in one for one in after.get("single", [])[:1])


def _text_tensors(
    source: Path, heads: Mapping[str, int], *, is_tied: bool
) -> Iterator[tuple[str, _Floats]]:
    for name, values in _tensors(source):
        rest = name.removeprefix("language_model.").removeprefix("model.")
        if rest == "embed_tokens.weight":
            yield "token_embd.weight", values
        elif rest == "norm.weight":
            yield "output_norm.weight", values
        elif rest == "lm_head.weight":
            if not is_tied:
                yield "output.weight", values
        elif rest.startswith("layers."):
            _, number, part = rest.split(".", 2)
            own = _LAYER[part.removesuffix(".weight")]
            if own in heads:
                values = _interleaved(values, heads[own])
            yield f"blk.{number}.{own}.weight", values


def _tower_name(name: str) -> str | None:
    """What llama.cpp calls a tensor of the tower; None for one that is no part of it. Pure."""
    if name in _TOWER_TOP:
        return _TOWER_TOP[name]
    head, _, rest = name.partition("vision_tower.encoder.layers.")
    if head or not rest:
        return None
    number, _, part = rest.partition(".")
    stem, _, kind = part.rpartition(".")
    return f"v.blk.{number}.{_TOWER_LAYER[stem]}.{kind}"


def _interleaved(weight: _Floats, num_heads: int) -> _Floats:
    """[H * D, E] with the partners of each rotary pair as neighbours, as in llama.cpp. Pure."""
    rows, columns = weight.shape
    halves = weight.reshape(num_heads, 2, rows // num_heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))


def _add_tensor(writer: gguf.GGUFWriter, name: str, values: _Floats, *, is_int8: bool) -> None:
    if is_int8 and values.ndim == 2:
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    else:
        writer.add_tensor(name, values)


def _tensors(source: Path) -> Iterator[tuple[str, _Floats]]:
    for path in sorted(source.glob("*.safetensors")):
        with safe_open(path, "np") as file:
            for name in file.keys():  # noqa: SIM118  the file is no mapping
                yield name, np.ascontiguousarray(file.get_tensor(name), dtype=np.float32)


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _first(value: int | list[int]) -> int:
    return value[0] if isinstance(value, list) else value


def _read(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return value
