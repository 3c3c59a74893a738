"""The seeded checkpoint that sees clips, and clips to show it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import AddedToken
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from benchmarks.models import byte_tokenizer

__all__ = ["FRAME_TOKENS", "MODEL_NAME", "VOCAB_SIZE", "clip", "frame_processor", "onevision"]

MODEL_NAME = "seeded LLaVA-OneVision, Qwen2 8 x 512 and SigLIP 6 x 384"
VOCAB_SIZE = 16384
_SIDE, _PATCH_SIZE = 384, 14
FRAME_TOKENS = 14 * 14
"""27 x 27 patches, pooled 2 x 2."""
_VALUES: dict[str, Any] = {
    "size": {"height": _SIDE, "width": _SIDE},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
_SIZE = (640, 360)
_RATE = 10
_CONTEXT = 8192


def onevision(directory: Path, *, seed: int = 0) -> Path:
    """A LLaVA-OneVision whose frames take 196 tokens, as in the real family.

    Changes: writes `directory`, unless a checkpoint is there already. Cost: seconds.
    """
    if (directory / "config.json").is_file():
        return directory
    torch.manual_seed(seed)
    tokenizer = byte_tokenizer(VOCAB_SIZE)
    tokenizer.add_tokens([AddedToken("<video>", special=True, normalized=False)])
    model = transformers.LlavaOnevisionForConditionalGeneration(_config(tokenizer))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    for name, kind in (
        ("preprocessor_config.json", {"image_processor_type": "LlavaOnevisionImageProcessor"}),
        (
            "video_preprocessor_config.json",
            {"video_processor_type": "LlavaOnevisionVideoProcessor"},
        ),
    ):
        (directory / name).write_text(json.dumps({**kind, **_VALUES}), encoding="utf-8")
    return directory


def frame_processor() -> SiglipImageProcessorPil:
    """What transformers makes of one frame. Pure."""
    return SiglipImageProcessorPil(**_VALUES)


def _config(
    tokenizer: transformers.PreTrainedTokenizerFast,
) -> transformers.LlavaOnevisionConfig:
    tower: Any = transformers.SiglipVisionConfig(
        hidden_size=384,
        intermediate_size=1536,
        num_hidden_layers=6,
        num_attention_heads=6,
        image_size=_SIDE,
        patch_size=_PATCH_SIZE,
        vision_use_head=False,
    )
    text: Any = transformers.Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=_CONTEXT,
        initializer_range=0.05,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )
    return transformers.LlavaOnevisionConfig(
        vision_config=tower,
        text_config=text,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        video_token_index=tokenizer.convert_tokens_to_ids("<video>"),
        tie_word_embeddings=False,
    )


def clip(seconds: int, seed: int) -> bytes:
    """An H.264 clip of 640 x 360 in which a block wanders over a ground of its own. Pure."""
    random = np.random.default_rng(seed)
    width, height = _SIZE
    coarse = random.integers(0, 256, (9, 16, 3), dtype=np.uint8)
    ground = np.asarray(Image.fromarray(coarse).resize(_SIZE, Image.Resampling.BICUBIC))
    colour = random.integers(0, 256, 3, dtype=np.uint8)
    steps = random.integers(5, 15, 2)
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=_RATE, options={"g": "50", "crf": "24"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(seconds * _RATE):
            pixels = ground.copy()
            x, y = number * steps % (width - 90, height - 90)
            pixels[y : y + 90, x : x + 90] = colour
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return buffer.getvalue()
