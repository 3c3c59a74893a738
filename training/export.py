"""Writes a checkpoint as the Hugging Face directory that ships with the package.

    python -m training.export TOKENIZER joint.pt FOLDER
    python -m training.export TOKENIZER language.pt FOLDER --vision vision.pt

The second form joins stages A and B without stage C.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from torch import nn
from transformers import AutoTokenizer, CLIPImageProcessorPil, GenerationConfig, LlavaProcessor

from training.labels import NUM_FACTS
from training.model import IMAGE_MEAN, IMAGE_SIDE, IMAGE_STD, PATCH_PIXELS, make_model

LIMIT_BYTES = 15 * 2**20


@torch.no_grad()
def quiet_free_outputs(model: nn.Module) -> None:
    """Silences projector outputs that no stage has trained yet. Changes: `model`."""
    head = model.model.multi_modal_projector.linear_1
    head.weight[NUM_FACTS:] = 0
    head.bias[NUM_FACTS:] = 0


def load_parts(model: nn.Module, vision: Path, language: Path) -> None:
    """Joins the tower of one checkpoint and the decoder of the other. Changes: `model`."""
    seeing, speaking = torch.load(vision)["model"], torch.load(language)["average"]
    from_vision = ("vision_tower", "linear_1")
    state = {
        name: seeing[name] if any(part in name for part in from_vision) else weight
        for name, weight in speaking.items()
    }
    model.load_state_dict(state)
    quiet_free_outputs(model)


def make_processor(tokenizer_folder: Path) -> LlavaProcessor:
    """The processor that training imitates in `pool.reduce_picture` and `model.normalise`."""
    image_processor = CLIPImageProcessorPil(
        do_resize=True,
        size={"height": IMAGE_SIDE, "width": IMAGE_SIDE},
        resample=3,
        do_center_crop=False,
        do_rescale=True,
        rescale_factor=1 / 255,
        do_normalize=True,
        image_mean=[IMAGE_MEAN] * 3,
        image_std=[IMAGE_STD] * 3,
        do_convert_rgb=True,
    )
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    return LlavaProcessor(
        image_processor=image_processor,
        tokenizer=tokenizer,
        patch_size=PATCH_PIXELS,
        vision_feature_select_strategy="default",
        chat_template=tokenizer.chat_template,
        image_token="<image>",
        num_additional_image_tokens=1,
    )


def name_tokenizer_class(path: Path) -> None:
    """Writes the class name that every version of transformers knows. Changes: the file."""
    config = json.loads(path.read_text())
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config, indent=2) + "\n")


def export(model: nn.Module, tokenizer_folder: Path, folder: Path) -> int:
    """Writes everything, each file renamed into place once complete.

    Returns the size of the folder in bytes.
    """
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    model = model.half()
    model.config.dtype = torch.float16
    ids = model.config.text_config
    model.generation_config = GenerationConfig(
        bos_token_id=ids.bos_token_id,
        eos_token_id=ids.eos_token_id,
        pad_token_id=ids.pad_token_id,
        do_sample=False,
    )
    model.save_pretrained(part)
    processor = make_processor(tokenizer_folder)
    processor.save_pretrained(part)
    processor.image_processor.save_pretrained(part)  # for readers of the older file name
    name_tokenizer_class(part / "tokenizer_config.json")
    folder.mkdir(parents=True, exist_ok=True)
    for path in part.iterdir():
        path.chmod(0o644)
        path.rename(folder / path.name)
    part.rmdir()
    total = sum(path.stat().st_size for path in folder.iterdir())
    if total > LIMIT_BYTES:
        raise ValueError(f"{folder} holds {total:,} bytes, limit {LIMIT_BYTES:,}")
    return total


def main() -> None:
    """Exports the averaged weights of one stage, or of two joined."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--vision", type=Path, help="take the tower from this checkpoint")
    args = parser.parse_args()
    model = make_model()
    if args.vision:
        load_parts(model, args.vision, args.checkpoint)
    else:
        model.load_state_dict(torch.load(args.checkpoint)["average"])
    print(f"{export(model, args.tokenizer, args.folder):,} bytes")


if __name__ == "__main__":
    main()
