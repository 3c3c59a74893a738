"""The architecture of tabletop: a LLaVA-1.5 of 5 million weights.

The projector's first layer is trained as the dense heads of the tower: its first NUM_FACTS
outputs say what each patch's cell holds (training/labels.py). The rest is free.
"""

import torch
from torch import Tensor, nn
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
)

from training.labels import PATCH_CELLS

WIDTH = 192
NUM_PATCHES = 36
VOCABULARY = 768
IMAGE_SIDE, PATCH_PIXELS = 96, 16
IMAGE_MEAN, IMAGE_STD = 0.5, 0.25


def make_config(special: dict[str, int] | None = None) -> LlavaConfig:
    """The configuration; `special` maps special tokens to ids once the tokenizer exists."""
    ids = special or {"<pad>": 0, "<s>": 1, "<|end|>": 2, "<image>": 6}
    vision = CLIPVisionConfig(
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=4,
        num_attention_heads=6,
        image_size=IMAGE_SIDE,
        patch_size=PATCH_PIXELS,
        projection_dim=WIDTH,
        hidden_act="quick_gelu",
    )
    text = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=512,
        num_hidden_layers=5,
        num_attention_heads=6,
        num_key_value_heads=6,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        # Slow rotations, so that attention can match contents at any distance.
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        pad_token_id=ids["<pad>"],
        bos_token_id=ids["<s>"],
        eos_token_id=ids["<|end|>"],
    )
    return LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=ids["<image>"],
        projector_hidden_act="gelu",
        vision_feature_select_strategy="default",
        vision_feature_layer=-1,
        image_seq_length=NUM_PATCHES,
        tie_word_embeddings=True,
    )


def make_model(special: dict[str, int] | None = None) -> LlavaForConditionalGeneration:
    """A fresh model, float32, initialised for fast learning."""
    model = LlavaForConditionalGeneration(make_config(special)).float()
    init_tower(model.model.vision_tower)
    return model


@torch.no_grad()
def init_tower(tower: nn.Module) -> None:
    """Starts attention within the cell: half the heads match the one-hot cells of positions.

    Changes: `tower`.
    """
    modules = dict(tower.named_modules())
    position = next(m for n, m in modules.items() if n.endswith("position_embedding")).weight
    position.mul_(0.5)
    for patch in range(NUM_PATCHES):
        row, column = divmod(patch, 6)
        vector = position[1 + patch]
        vector[int(PATCH_CELLS[patch])] += 1.0
        vector[9 + (row % 2) * 2 + column % 2] += 1.0
    gain = 0.7
    for name, module in modules.items():
        if name.endswith(("q_proj", "k_proj")):
            for head in range(3):
                module.weight[head * 32 : head * 32 + 9, :9] += gain * torch.eye(9)


def tower_features(model: nn.Module, pixels: Tensor) -> Tensor:
    """[n, 36, WIDTH] features of [n, 3, 96, 96] pixels, as LLaVA selects them."""
    return model.model.vision_tower(pixel_values=pixels).last_hidden_state[:, 1:]


def normalise(pictures: Tensor) -> Tensor:
    """[n, 3, 96, 96] float32 pixels of [n, 96, 96, 3] uint8 pictures, as the processor does."""
    return (pictures.permute(0, 3, 1, 2).float() / 255 - IMAGE_MEAN) / IMAGE_STD
