"""Families of models: their configuration, weights and arithmetic.

Owns the weights of a loaded model and nothing that changes. Called by `runner` only, which
gives the step's attention and keeps KV and encoded pictures.

    config.json -> FAMILIES -> Model(decoder, pictures)
    pixels -> PictureEncoder -> embeddings -> Decoder <-> Attention -> logits
"""

from mmserve.models.config import DecoderConfig, LlavaConfig, RopeConfig, TowerConfig
from mmserve.models.decoder import Attention, Decoder
from mmserve.models.llava import PictureEncoder
from mmserve.models.registry import FAMILIES, Model, build_model, read_config
from mmserve.models.weights import weight_files

__all__ = [
    "FAMILIES",
    "Attention",
    "Decoder",
    "DecoderConfig",
    "LlavaConfig",
    "Model",
    "PictureEncoder",
    "RopeConfig",
    "TowerConfig",
    "build_model",
    "read_config",
    "weight_files",
]
