"""Kinds of bugs that were reported of loading and running models elsewhere, each tried here.

Sources are public reports; what is tried is of our own making.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import tiny_llama, tiny_llava
from support.families.internvl import FAMILY as INTERNVL
from support.families.qwen_cases import family, inputs
from support.families.qwen_checkpoints import load_processor, tiny_qwen_vl
from support.proof import Case, Clip, Family, Proof, picture
from support.steps import Driver, load

from mmserve.core import (
    ModelRefused,
    RunnerFailed,
    UnsupportedModel,
    WeightMismatch,
)
from mmserve.engine import Engine
from mmserve.models import DecoderConfig, read_config
from mmserve.prompt import load_chat_template, load_tokenizer
from mmserve.runner.identity import eos_token_ids
from mmserve.vision import Bounds
from mmserve.vision import load_processor as load_pictures

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7\n"
IMAGE = {"image_url": {"url": ""}, "type": "image_url"}
PROMPT = [1, 40, 50, 60]

Edit = Callable[[Path], object]


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[Path], Path]:
    """Gives a copy of a checkpoint that a test may write into."""
    return lambda directory: shutil.copytree(directory, tmp_path / "copy")


def _say(directory: Path, file: str = "config.json", **fields: Any) -> None:
    """Write fields into a JSON file of the checkpoint."""
    path = directory / file
    found = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**found, **fields}))


def _tensors(directory: Path, file: str = WEIGHTS, **changes: torch.Tensor | None) -> None:
    """Write tensors into a weight file; None takes one away."""
    path = directory / file
    tensors = {**(load_file(path) if path.is_file() else {}), **changes}
    save_file({name: one for name, one in tensors.items() if one is not None}, path)


def _top(directory: Path) -> Any:
    """The likeliest tokens after a short prompt."""
    driver = Driver(load(directory))
    return driver.step([driver.row(PROMPT, driver.new_slots(len(PROMPT)))]).rows[0].top


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "fetch it again"), (b"", "fetch it again"), (POINTER, "git lfs pull")],
)
def test_weights_that_are_not_whole_are_refused_by_file(
    copied: Callable[[Path], Path], content: bytes | None, words: str
) -> None:
    """A cut file, none, a pointer: with the way out. Source: huggingface/transformers#27923."""
    path = copied(tiny_llama()) / WEIGHTS
    path.write_bytes(path.read_bytes()[:-1000] if content is None else content)
    with pytest.raises(ModelRefused, match=words) as caught:
        load(path.parent)
    assert WEIGHTS in caught.value.message


@pytest.mark.parametrize(
    "text", ["{", "{}", '{"weight_map": ["a"]}', '{"weight_map": {"a": 1}}']
)
def test_an_index_that_is_none_is_refused(copied: Callable[[Path], Path], text: str) -> None:
    """Half a download is no traceback. Source: Blaizzy/mlx-vlm#1827."""
    directory = copied(tiny_llama())
    (directory / INDEX).write_text(text)
    with pytest.raises(ModelRefused, match="no index of weight files"):
        load(directory)


def _sharded(copied: Callable[[Path], Path]) -> tuple[Path, dict[str, str]]:
    directory = copied(tiny_llama(max_shard_size="100KB"))
    assigned = json.loads((directory / INDEX).read_text())["weight_map"]
    assert len(set(assigned.values())) > 2
    return directory, assigned


def test_a_shard_that_is_missing_is_named(copied: Callable[[Path], Path]) -> None:
    """Nothing is left as it happened to be. Source: sgl-project/sglang#32279."""
    directory, assigned = _sharded(copied)
    gone = assigned["model.norm.weight"]
    (directory / gone).unlink()
    with pytest.raises(ModelRefused, match=gone):
        load(directory)


def test_an_index_says_which_file_a_tensor_is_read_from(copied: Callable[[Path], Path]) -> None:
    """Of two that hold it, the other is stale. Source: vllm-project/vllm#54230."""
    directory, assigned = _sharded(copied)
    wanted = _top(directory)
    name = "model.norm.weight"
    for other in sorted(set(assigned.values()) - {assigned[name]}):
        _tensors(directory, other, **{name: torch.full((64,), 9.0)})
    assert _top(directory) == wanted


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("consolidated.safetensors", "model.norm.weight"),
        ("consolidated.safetensors", "layers.0.attention.wq.weight"),
        ("adapter_model.safetensors", "base_model.model.model.norm.lora_A.weight"),
    ],
)
@pytest.mark.parametrize("is_sharded", [False, True])
def test_files_beside_the_weights_are_not_read(
    copied: Callable[[Path], Path], file: str, name: str, is_sharded: bool
) -> None:
    """The same under other names, adapters. Source: Blaizzy/mlx-vlm#1464."""
    directory = copied(tiny_llama(max_shard_size="100KB" if is_sharded else "1GB"))
    _tensors(directory, file, **{name: torch.full((64,), 9.0)})
    assert _top(directory) == _top(tiny_llama())


def test_a_tensor_in_two_files_is_refused_where_nothing_decides(
    copied: Callable[[Path], Path],
) -> None:
    """Neither is taken by its name. Source: ggml-org/llama.cpp#17286."""
    directory = copied(tiny_llama())
    shutil.copy(directory / WEIGHTS, directory / "model-00002-of-00002.safetensors")
    (directory / WEIGHTS).rename(directory / "model-00001-of-00002.safetensors")
    with pytest.raises(ModelRefused, match="is in model-00001"):
        load(directory)


def test_pickled_weights_are_refused(copied: Callable[[Path], Path]) -> None:
    """They could run anything. Source: TinyLLaVA/TinyLLaVA_Factory#88."""
    directory = copied(tiny_llama())
    (directory / WEIGHTS).rename(directory / "pytorch_model.bin")
    with pytest.raises(ModelRefused, match="never read"):
        load(directory)


def test_an_adapter_is_no_model(tmp_path: Path) -> None:
    """The refusal names its model. Source: lm-sys/FastChat#502."""
    _say(tmp_path, "adapter_config.json", base_model_name_or_path="some/model")
    with pytest.raises(ModelRefused, match="an adapter for some/model"):
        read_config(tmp_path)


@pytest.mark.parametrize("part", ["", "text_config"])
@pytest.mark.parametrize("field", ["quantization_config", "compression_config", "quantization"])
def test_quantized_weights_are_refused_wherever_it_is_said(
    copied: Callable[[Path], Path], part: str, field: str
) -> None:
    """Beside or inside of the text's part. Source: ModelCloud/GPTQModel#1655."""
    directory = copied(tiny_llava())
    said = {field: {"bits": 4, "quant_method": "gptq"}}
    inner = {**read_config(directory)[part], **said} if part else {}
    _say(directory, **({part: inner} if part else said))
    with pytest.raises(UnsupportedModel, match=rf"'llava'.*\({field}\)"):
        load(directory)


def test_whole_numbers_are_no_weights(copied: Callable[[Path], Path]) -> None:
    """Packed ones of the right shape are not computed with. Source: OpenCharAI/OpenChar#53."""
    directory = copied(tiny_llama())
    name = "model.layers.0.self_attn.q_proj.weight"
    _tensors(directory, **{name: torch.ones(64, 64, dtype=torch.int8)})
    with pytest.raises(WeightMismatch, match="int8"):
        load(directory)


def test_tied_logits_may_lie_in_the_file_too(copied: Callable[[Path], Path]) -> None:
    """Tuned checkpoints carry both. Source: vllm-project/vllm#6758."""
    tied = tiny_llama(changes=(("tie_word_embeddings", True),))
    directory = copied(tied)
    table = load_file(directory / WEIGHTS)["model.embed_tokens.weight"]
    _tensors(directory, **{"lm_head.weight": table.clone()})
    assert _top(directory) == _top(tied)


def test_untied_logits_must_lie_in_the_file(copied: Callable[[Path], Path]) -> None:
    """They are not made up. Source: QwenLM/Qwen3-VL-Embedding#89."""
    directory = copied(tiny_llama())
    _tensors(directory, **{"lm_head.weight": None})
    with pytest.raises(WeightMismatch, match="lm_head"):
        load(directory)


def test_logits_are_tied_where_either_part_says_so(copied: Callable[[Path], Path]) -> None:
    """A LLaVA's own word or its text's. Source: LLaVA-VL/LLaVA-NeXT#315."""
    directory = copied(tiny_llava())
    text = read_config(directory)["text_config"]
    _tensors(directory, **{"language_model.lm_head.weight": None})
    for top, inner in ((True, False), (False, True)):
        _say(
            directory,
            tie_word_embeddings=top,
            text_config={**text, "tie_word_embeddings": inner},
        )
        load(directory)


@pytest.mark.parametrize(
    ("generation", "config", "spelled", "wanted"),
    [
        (2, 2, "<|end|>", (2, 7)),
        ([2, 5], None, "</s>", (2, 5)),
        (None, None, {"content": "<|end|>"}, (7,)),
        ([2, -1, 100_000], None, None, (2,)),
    ],
)
def test_every_end_that_is_named_ends_an_answer(
    copied: Callable[[Path], Path], generation: Any, config: Any, spelled: Any, wanted: Any
) -> None:
    """Of three files, none hides another's. Source: Blaizzy/mlx-vlm#2112."""
    directory = copied(tiny_llama())
    _say(directory, "generation_config.json", eos_token_id=generation)
    _say(directory, eos_token_id=config)
    _say(directory, "tokenizer_config.json", eos_token=spelled)
    assert load(directory).info.eos_token_ids == wanted


def test_a_model_without_an_end_is_refused(copied: Callable[[Path], Path]) -> None:
    """As is one whose end is no token. Source: vllm-project/vllm#45591."""
    directory = copied(tiny_llama())
    for name in ("generation_config.json", "config.json"):
        _say(directory, name, eos_token_id=None)
    _say(directory, "tokenizer_config.json", eos_token=None)
    with pytest.raises(ModelRefused, match="ends an answer"):
        load(directory)
    _say(directory, "generation_config.json", eos_token_id=[2, None])
    with pytest.raises(ModelRefused, match="eos_token_id"):
        eos_token_ids(directory, {})


@pytest.mark.parametrize(
    "file", ["generation_config.json", "tokenizer_config.json", "tokenizer.json"]
)
def test_files_that_are_no_json_are_named(copied: Callable[[Path], Path], file: str) -> None:
    """A pointer of Git LFS in their place, say. Source: microsoft/OmniParser#34."""
    directory = copied(tiny_llama())
    (directory / file).write_bytes(POINTER)
    with pytest.raises(ModelRefused, match=file):
        Engine(model=str(directory), num_slots=64, threads=1)


@pytest.mark.parametrize("make", [tiny_llava, lambda: tiny_qwen_vl("qwen2_vl")])
def test_settings_of_pictures_that_are_no_json_are_named(
    copied: Callable[[Path], Path], make: Callable[[], Path]
) -> None:
    """They are not taken for absent. Source: lablup/mlxcel#1364."""
    directory = copied(make())
    (directory / "processor_config.json").write_bytes(POINTER)
    with pytest.raises(ModelRefused, match=r"processor_config\.json"):
        load_pictures(directory, read_config(directory))


@pytest.mark.parametrize("kind", ["linear", "llama3"])
def test_a_stretched_rotary_embedding_has_its_factor(kind: str) -> None:
    """None is assumed, and sections need none. Source: QwenLM/Qwen3-VL#96."""
    config = {**read_config(tiny_llama()), "rope_parameters": None}
    with pytest.raises(UnsupportedModel, match="without a factor"):
        DecoderConfig.parse({**config, "rope_scaling": {"type": kind}})
    sections = {"type": "mrope", "mrope_section": [2, 3, 3]}
    assert DecoderConfig.parse({**config, "rope_scaling": sections}).ropes


@pytest.mark.parametrize("word", ["qwen2_vl", "qwen2_5_vl"])
def test_a_configuration_without_parts_means_the_same(
    copied: Callable[[Path], Path], word: str
) -> None:
    """The first releases wrote the text's fields flat. Source: vllm-project/vllm#7905."""
    directory = copied(tiny_qwen_vl(word))
    whole = read_config(directory)
    text = whole.pop("text_config")
    ropes = text.pop("rope_parameters")
    scaling = {"type": "mrope", "mrope_section": ropes["mrope_section"]}
    flat = {**text, **whole, "rope_theta": ropes["rope_theta"], "rope_scaling": scaling}
    (directory / "config.json").write_text(json.dumps(flat))
    assert _top(directory) == _top(tiny_qwen_vl(word))


def test_of_several_chat_templates_the_default_is_used(copied: Callable[[Path], Path]) -> None:
    """They come as a list of names. Source: sgl-project/sglang#17236."""
    directory = copied(tiny_llama())
    (directory / "chat_template.jinja").unlink(missing_ok=True)
    named = [{"name": name, "template": f"{name}!"} for name in ("rag", "default", "tool_use")]
    for templates, wanted in ((named, "default!"), (named[:1], None)):
        _say(directory, "tokenizer_config.json", chat_template=templates)
        found = load_chat_template(directory, load_tokenizer(directory))
        assert (found and found.source) == wanted


def test_features_beyond_half_precision_fail_their_request_only(
    copied: Callable[[Path], Path],
) -> None:
    """No row of "!", and texts before and after are answered. Source: Blaizzy/mlx-vlm#1163."""
    directory = copied(tiny_llava())
    name = "multi_modal_projector.linear_2.weight"
    _tensors(directory, **{name: load_file(directory / WEIGHTS)[name] * 1e6})
    words = {"role": "user", "content": [{"type": "text", "text": "Hello."}]}
    shape = Proof(Family("llava", lambda: directory, (), num_tokens=2))
    seen = Case("seen", (("user", (picture(1, 60, 40), "Hello.")),))
    settings = {"temperature": 0, "max_new_tokens": 3}
    with Engine(model=str(directory), num_slots=512, threads=1, dtype="float16") as engine:
        before = engine.chat([words], sampling_params=settings).token_ids
        with pytest.raises(RunnerFailed, match="not finite"):
            shape.read(engine, [seen])
        assert engine.chat([words], sampling_params=settings).token_ids == before


def test_a_placeholder_that_a_user_writes_takes_no_pictures_place() -> None:
    """Before a picture or behind it. Source: vllm-project/vllm#57740."""
    proof = Proof(Family("qwen2_vl", lambda: tiny_qwen_vl("qwen2_vl"), (), num_tokens=1))
    seen, words = picture(1, 60, 40), "What is <|image_pad|>?"
    cases = [
        Case("behind", (("user", (seen, words)),)),
        Case("before", (("user", (words, seen)),)),
    ]
    config = read_config(proof.directory)
    start, end, pad = (
        config[f"{name}_token_id"] for name in ("vision_start", "vision_end", "image")
    )
    with proof.engine() as engine:
        for reading in proof.read(engine, cases):
            ids = np.array(reading.prompt_ids)
            (first,), (last,) = np.nonzero(ids == start)[0], np.nonzero(ids == end)[0]
            assert np.nonzero(ids == pad)[0].tolist() == list(range(first + 1, last))


def test_fast_and_slow_clips_of_one_request_keep_their_own_times() -> None:
    """Also at more frames than positions a second. Source: huggingface/transformers#41229."""
    fast, slow = (
        Clip(tuple(picture(seed + k, 40, 40) for k in range(6)), rate)
        for seed, rate in ((30, 30.0), (50, 0.3))
    )
    case = Case("two rates", (("user", ("Is ", fast, " as ", slow, "?")),))
    for word in ("qwen2_5_vl", "qwen3_vl"):
        make = family(word).make
        proof = Proof(Family(word, make, (case,), inputs, load_processor, num_tokens=4))
        with proof.engine() as engine:
            proof.check(proof.read(engine, [case]))


def test_a_picture_of_one_tile_is_not_cut() -> None:
    """A square is one tile, not three by three. Source: sgl-project/sglang#11181."""
    directory = INTERNVL.make()
    config = read_config(directory)
    processor = load_pictures(directory, config)
    side = config["vision_config"]["image_size"]
    side = side if isinstance(side, int) else side[0]
    tile = processor.picture(side, side, Bounds()).num_patches
    assert processor.picture(2 * side, side, Bounds()).num_patches == 3 * tile
