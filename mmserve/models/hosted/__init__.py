"""Modules of transformers behind this room's ports: towers of all families, and whole models.

Called by `models.families` for what sees, and by `models.registry` for models that no family
there serves. What runs here is transformers' own arithmetic on transformers' own weights
loading; only attention over the KV store is ours.
"""

from mmserve.models.hosted.eyes import Features, HostedEyes, Tensors
from mmserve.models.hosted.whole import build_hosted, is_hosted

__all__ = ["Features", "HostedEyes", "Tensors", "build_hosted", "is_hosted"]
