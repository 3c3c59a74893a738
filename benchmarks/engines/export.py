"""One checkpoint in each engine's own form, from the same weights; written once and kept.

engine                         form
mmserve, transformers*         a Hugging Face directory
vllm                           the same; a LLaVA's tower under the names of older files
llama.cpp                      a directory with model.gguf and, for pictures, tower.gguf
openvino                       a directory written by optimum-intel in its own environment
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file

from benchmarks.engines import ENGINES, EngineAbsent
from benchmarks.engines.gguf_files import write_text_model, write_tower
from benchmarks.engines.worker import ROOT
from benchmarks.models import llava_60m
from mmserve.engine import locate_model
from mmserve.models.gguf import GgufSource

__all__ = ["MODELS", "Bits", "checkpoint", "export"]

Bits = Literal["full", "int8", "int4"]
"""Of the weights; "full" is float32."""

_EXPORT_S = 900.0


def checkpoint(model: str, folder: Path) -> Path:
    """The Hugging Face directory of one of `MODELS`, in float32.

    Changes: writes `folder / model`, unless it is there. Cost: half a minute for SmolLM2.
    """
    return _kept(folder / model, MODELS[model])


def export(engine: str, model: str, folder: Path, *, bits: Bits = "full") -> Path:
    """A checkpoint in the form of one of `ENGINES`, for `Worker.load`.

    Args:
        engine: its name.
        model: a name of `MODELS`, or a Hugging Face directory.
        folder: where exports are kept; they are found again by name.
        bits: of the weights. mmserve and vLLM take the float32 directory and do with it what
            their options say.

    Changes: writes below `folder`, unless the export is there. Raises EngineAbsent, with the
    reason, where the engine has no such form or its exporter fails.
    """
    source = checkpoint(model, folder) if model in MODELS else Path(model)
    stem = folder / f"{source.name}-{bits}"
    if engine == "llama.cpp":
        return _kept(stem.with_name(f"{stem.name}-gguf"), lambda to: _gguf(source, to, bits))
    if engine == "openvino":
        old = _kept(folder / f"{source.name}-old", lambda to: _old_names(source, to))
        return _kept(
            stem.with_name(f"{stem.name}-openvino"), lambda to: _openvino(old, to, bits)
        )
    if engine == "vllm":
        return _kept(folder / f"{source.name}-old", lambda to: _old_names(source, to))
    return source


def _kept(target: Path, write: Callable[[Path], object]) -> Path:
    """`target`, written beside itself first, so that half an export is never found."""
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f"{target.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    write(unfinished)
    unfinished.rename(target)
    return target


def _smollm2(target: Path) -> None:
    """SmolLM2-135M-Instruct as mmserve reads it: the packaged file's weights in float32."""
    path = locate_model("smollm2-135m")
    source = GgufSource(path)
    found = source.config
    config = transformers.LlamaConfig(
        vocab_size=found["vocab_size"],
        hidden_size=found["hidden_size"],
        intermediate_size=found["intermediate_size"],
        num_hidden_layers=found["num_hidden_layers"],
        num_attention_heads=found["num_attention_heads"],
        num_key_value_heads=found["num_key_value_heads"],
        max_position_embeddings=found["max_position_embeddings"],
        rms_norm_eps=found["rms_norm_eps"],
        rope_theta=found["rope_theta"],
        tie_word_embeddings=found["tie_word_embeddings"],
        bos_token_id=found["bos_token_id"],
        eos_token_id=found["eos_token_id"][0],
    )
    weights = {_name(name): source.read(name) for name in source.names}
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    absent, surplus = model.load_state_dict(weights, strict=False, assign=True)
    if surplus or set(absent) - {"lm_head.weight"}:
        message = f"weights do not fit: {[*surplus, *absent]}"
        raise ValueError(message)
    model.tie_weights()
    model.save_pretrained(target)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    tokenizer.save_pretrained(target)


def _name(ours: str) -> str:
    """Transformers' name of a tensor of mmserve's. Pure."""
    return ours if ours == "lm_head.weight" else ours.replace("text.", "model.", 1)


MODELS: dict[str, Callable[[Path], object]] = {
    "smollm2-135m": _smollm2,
    "llava-60m": llava_60m,
}
"""Checkpoints of the suite: one with real weights, text only, and one seeded that sees."""


def _gguf(source: Path, target: Path, bits: Bits) -> None:
    if bits == "int4":
        _packaged(source, target)
        return
    try:
        write_text_model(source, target / "model.gguf", is_int8=bits == "int8")
    except ValueError as error:
        raise EngineAbsent(str(error)) from error
    if "vision_config" in _config(source):
        write_tower(source, target / "tower.gguf")


def _packaged(source: Path, target: Path) -> None:
    """SmolLM2's own file, whose bits the float32 weights were made of."""
    if source.name != "smollm2-135m":
        message = "four bits come from SmolLM2's own file; other models have none"
        raise EngineAbsent(message)
    shutil.copyfile(locate_model("smollm2-135m"), target / "model.gguf")


def _old_names(source: Path, target: Path) -> None:
    """A copy whose CLIP tower is named as before transformers 5.6; others stay as they are."""
    shutil.copytree(source, target, dirs_exist_ok=True)
    if _config(source).get("model_type") != "llava":
        return
    for path in target.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            tensors = {_old(name): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        save_file(tensors, path, metadata={"format": "pt"})


def _old(name: str) -> str:
    own = "vision_tower."
    if name.startswith(own) and not name.startswith(f"{own}vision_model."):
        return f"{own}vision_model.{name.removeprefix(own)}"
    return name


def _openvino(source: Path, target: Path, bits: Bits) -> None:
    """Run optimum-intel's exporter. Raises EngineAbsent with the last line that it says."""
    spec = next(one for one in ENGINES if one.name == "openvino")
    words = [str(spec.python()), "-m", "benchmarks.engines.openvino_export"]
    words += [str(source.absolute()), str(target.absolute()), bits]
    command = ["env", "-u", "PYTHONPATH", "HF_HUB_OFFLINE=1", "DO_NOT_TRACK=1", *words]
    try:
        subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=_EXPORT_S
        )
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no reason given"])[-1]
        message = f"optimum-intel does not export {source.name}: {last[:300]}"
        raise EngineAbsent(message) from error
    except subprocess.TimeoutExpired as error:
        message = f"optimum-intel took over {_EXPORT_S:g} s for {source.name}"
        raise EngineAbsent(message) from error
    pictures = source / "preprocessor_config.json"  # the exporter leaves it out, and the
    if pictures.is_file():  # pipeline reads it: without it pictures are normalised otherwise
        shutil.copy(pictures, target)


def _config(source: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((source / "config.json").read_text(encoding="utf-8"))
    return value
