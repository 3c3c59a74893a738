"""Families of models: their configuration, weights and arithmetic.

Owns the weights of a loaded model and nothing that changes. Called by `runner` only, which
gives the step's attention and keeps KV and encoded pictures.

    config.json -> FAMILIES -> Model(decoder, pictures)
    pixels -> PictureEncoder -> embeddings -> LanguageModel <-> Attention -> logits
"""

from mmserve.models.checkpoint import Checkpoint
from mmserve.models.config import DecoderConfig, LlavaConfig, RopeConfig, TowerConfig
from mmserve.models.decoder import Decoder
from mmserve.models.families import FAMILIES
from mmserve.models.ports import (
    Attention,
    DecoderShape,
    Inputs,
    LanguageModel,
    Model,
    PictureEncoder,
)
from mmserve.models.registry import build_model, read_config
from mmserve.models.shards import weight_files

__all__ = [
    "FAMILIES",
    "Attention",
    "Checkpoint",
    "Decoder",
    "DecoderConfig",
    "DecoderShape",
    "Inputs",
    "LanguageModel",
    "LlavaConfig",
    "Model",
    "PictureEncoder",
    "RopeConfig",
    "TowerConfig",
    "build_model",
    "read_config",
    "weight_files",
]
