"""Writes a checkpoint in OpenVINO's form with optimum-intel; runs in that environment.

python -m benchmarks.engines.openvino_export SOURCE TARGET full|int8|int4
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from optimum.exporters.openvino import main_export
from optimum.intel.openvino.configuration import OVConfig, OVWeightQuantizationConfig

__all__ = ["write"]


def write(source: Path, target: Path, bits: str) -> None:
    """Models, tokenizer and detokenizer of a Hugging Face directory.

    Args:
        source: Llama or LLaVA; a CLIP tower under the names of older files.
        target: directory to fill.
        bits: of the weights: "full" (float32), "int8" or "int4".

    Changes: writes `target`. Cost: about a minute for a model of 60M parameters.
    """
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    task = "image-text-to-text" if "vision_config" in config else "text-generation-with-past"
    smaller = {"int8": 8, "int4": 4}.get(bits)
    quantization = None
    if smaller is not None:
        quantization = OVConfig(quantization_config=OVWeightQuantizationConfig(bits=smaller))
    main_export(
        str(source),
        target,
        task=task,
        ov_config=quantization or OVConfig(dtype="fp32"),
        convert_tokenizer=True,
        library_name="transformers",
    )


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
