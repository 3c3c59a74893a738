"""Attention through FlashInfer, where its package and a CUDA device are.

Owns wrappers and their workspace. Called by the choice of kernels for a CUDA device only; the
package itself is imported when it is chosen. Drawing tokens is not here: its samplers reject
and draw again by counters of their own, so a seed would give other tokens than elsewhere.

    rows -> plan_batches -> Pool lends wrappers -> run, merge
"""

from mmserve.kernels.flashinfer.attention import FlashInferAttention, unsupported
from mmserve.kernels.flashinfer.batches import Batch, plan_batches

__all__ = ["Batch", "FlashInferAttention", "plan_batches", "unsupported"]
