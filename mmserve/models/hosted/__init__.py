"""Modules of transformers behind this room's ports: towers of all families, and whole models.

Called by `models.families`. What runs here is transformers' own arithmetic on transformers' own
weights loading; only attention over the KV store is ours.
"""

from mmserve.models.hosted.eyes import Features, HostedEyes, Tensors

__all__ = ["Features", "HostedEyes", "Tensors"]
