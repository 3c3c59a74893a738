"""Carries out one ForwardPlan on one device.

Owns every tensor that outlives a layer: the KV store and the store of encoded pictures; the
ledgers of both are in the planning wing. Called by `engine/load.py` only.

    ForwardPlan --launch--> drop, encode -> embed, features -> decoder -> masks -> draw
                --finish--> SampledTokens
"""

from mmserve.runner.load import LoadedModel, load_model
from mmserve.runner.torch_runner import TorchRunner

__all__ = ["LoadedModel", "TorchRunner", "load_model"]
