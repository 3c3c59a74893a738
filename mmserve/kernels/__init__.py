"""Functions on tensors: what a layer and a sampler are made of.

Owns no state: stores and weights belong to the callers. Called by `models` and `runner` only.
Attention is a port (`AttentionBackend`), so that faster twins can stand in for the torch one.

    rms_norm  rotary  silu_and_mul  Linear | KvWriter -> store <- AttentionPlan | sample
"""

from mmserve.kernels.attention import AttentionBackend, AttentionPlan, KvTensors, QueryRow
from mmserve.kernels.attention_torch import KvWriter, TorchAttention
from mmserve.kernels.elementwise import (
    activation,
    gelu_and_mul,
    rms_norm,
    rotary,
    silu_and_mul,
)
from mmserve.kernels.linear import Linear
from mmserve.kernels.quantized import QuantizedLinear
from mmserve.kernels.sampling import Drawn, sample, top_of, uniform_of

__all__ = [
    "AttentionBackend",
    "AttentionPlan",
    "Drawn",
    "KvTensors",
    "KvWriter",
    "Linear",
    "QuantizedLinear",
    "QueryRow",
    "TorchAttention",
    "activation",
    "gelu_and_mul",
    "rms_norm",
    "rotary",
    "sample",
    "silu_and_mul",
    "top_of",
    "uniform_of",
]
