"""SmolVLM: Idefics3's pictures, and clips of frames behind their times."""

import functools
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil
from transformers.models.smolvlm.processing_smolvlm import DEFAULT_CHAT_TEMPLATE
from transformers.video_utils import VideoMetadata

from support.checkpoints import _root, _save
from support.families.idefics3 import (
    EXTREMES,
    SIDE,
    TILE_WORDS,
    small_config,
    tokenizer_with,
)
from support.proof import CLIP_CASES, PICTURE_CASES, TEXT_CASES, Case, Clip, Family


@functools.cache
def tiny_smolvlm(*, seed: int = 12) -> Path:
    """SmolVLM: pictures of 128 pixels in tiles of 32; frames are one tile."""
    torch.manual_seed(seed)
    words = (*TILE_WORDS, "<|im_start|>")
    tokenizer = tokenizer_with(words, DEFAULT_CHAT_TEMPLATE, image_token="<image>")
    config = small_config(transformers.SmolVLMConfig, tokenizer)
    directory = Path(mkdtemp(prefix="tiny-smolvlm-", dir=_root()))
    _save(transformers.SmolVLMForConditionalGeneration(config), directory)
    sizes = {"size": {"longest_edge": 4 * SIDE}, "max_image_size": {"longest_edge": SIDE}}
    transformers.SmolVLMProcessor(
        image_processor=SmolVLMImageProcessorPil(**sizes),
        tokenizer=tokenizer,
        video_processor=transformers.SmolVLMVideoProcessor(**sizes),
        image_seq_len=4,
        chat_template=DEFAULT_CHAT_TEMPLATE,
    ).save_pretrained(directory)
    return directory


def clip_metadata(clip: Clip) -> VideoMetadata:
    """What transformers is to know of a clip: all frames are taken."""
    num = len(clip.frames)
    return VideoMetadata(total_num_frames=num, fps=clip.fps, frames_indices=list(range(num)))


def processor_of(directory: Path) -> Any:
    """Transformers' processor, with pictures on Pillow; clips it has on torchvision alone."""
    processor = transformers.AutoProcessor.from_pretrained(directory)
    processor.image_processor = SmolVLMImageProcessorPil.from_pretrained(directory)
    return processor


def inputs(processor: Any, case: Case) -> Mapping[str, Any]:
    """A case by transformers' processor, tiles and frames in order of appearance."""
    text = processor.apply_chat_template(
        case.messages, add_generation_prompt=True, tokenize=False
    )
    media: dict[str, Any] = {}
    if case.pictures:
        media["images"] = [Image.fromarray(p) for p in case.pictures]
    if case.clips:
        media["videos"] = [np.stack(clip.frames) for clip in case.clips]
        media["video_metadata"] = [clip_metadata(clip) for clip in case.clips]
    found = dict(processor(text=[text], return_tensors="pt", **media))
    found.pop("pixel_attention_mask", None)
    shown = []
    for part in (part for _, parts in case.turns for part in parts):
        if isinstance(part, Clip):
            seen = processor.video_processor(
                np.stack(part.frames),
                video_metadata=[clip_metadata(part)],
                do_sample_frames=False,
                return_tensors="pt",
            )
            shown.append(seen["pixel_values"][0])
        elif isinstance(part, np.ndarray):
            seen = processor.image_processor(Image.fromarray(part), return_tensors="pt")
            shown.append(seen["pixel_values"][0])
    if shown:
        found["pixel_values"] = torch.cat(shown)[None]
    return found


FAMILY = Family(
    "smolvlm",
    tiny_smolvlm,
    (*TEXT_CASES, *PICTURE_CASES, *CLIP_CASES, *EXTREMES),
    inputs,
    processor_of,
)
"""SmolVLM through the engine against transformers."""
