"""Functions on tensors: what a layer and a sampler are made of.

Owns no state: stores and weights belong to the callers. Called by `models` and `runner` only.
What computes is a bundle behind the port `Ops`, chosen once at load; the torch one is the
reference of its twins.

    choose_ops -> Ops: linear  layers  draw | KvWriter -> store <- AttentionPlan
"""

from mmserve.kernels.attention import (
    AttentionBackend,
    AttentionPlan,
    KvTensors,
    KvWriter,
    QueryRow,
    Turn,
)
from mmserve.kernels.attention_torch import TorchAttention
from mmserve.kernels.choice import ChosenOps, choose_ops
from mmserve.kernels.elementwise import (
    activation,
    gelu_and_mul,
    rms_norm,
    rotary,
    silu_and_mul,
)
from mmserve.kernels.layers import (
    AttentionParts,
    LayerAttention,
    Layers,
    LayerShape,
    LayerWeights,
)
from mmserve.kernels.ops import Draws, Ops, Product, TorchOps
from mmserve.kernels.sampling import Drawn, sample, top_of, uniform_of

__all__ = [
    "AttentionBackend",
    "AttentionParts",
    "AttentionPlan",
    "ChosenOps",
    "Drawn",
    "Draws",
    "KvTensors",
    "KvWriter",
    "LayerAttention",
    "LayerShape",
    "LayerWeights",
    "Layers",
    "Ops",
    "Product",
    "QueryRow",
    "TorchAttention",
    "TorchOps",
    "Turn",
    "activation",
    "choose_ops",
    "gelu_and_mul",
    "rms_norm",
    "rotary",
    "sample",
    "silu_and_mul",
    "top_of",
    "uniform_of",
]
