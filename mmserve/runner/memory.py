"""How much memory is for KV: what is free when the weights are there, less what steps take.

|== weights ==|======= KV =======|= features =|= peak of a step =|= left alone =|
              '------- share of what is free now --------------'
"""

from __future__ import annotations

from dataclasses import dataclass

from mmserve.core import ModelRefused

__all__ = ["CPU_KV_BYTES", "Budget", "check_room", "num_slots"]

CPU_KV_BYTES = 1 << 30
"""Memory for KV on a CPU if the settings do not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Bytes of one device.

    Args:
        free: not taken by anybody when the weights are loaded.
        share: of it that the engine may take, in (0, 1].
        peak: most that a step takes for itself while it runs.
        features: for encoded pictures.
    """

    free: int
    share: float
    peak: int
    features: int

    @property
    def kv(self) -> int:
        """Bytes left for KV, perhaps none. Pure."""
        return max(int(self.free * self.share) - self.peak - self.features, 0)


def num_slots(kv_bytes: int, bytes_per_token: int, most: int) -> int:
    """Tokens of KV that fit, at least one and no more than `most`. Pure."""
    return max(1, min(most, kv_bytes // bytes_per_token))


def check_room(budget: Budget, bytes_per_token: int, least: int) -> None:
    """Raise ModelRefused if not even `least` tokens of KV fit into the budget. Pure."""
    need = least * bytes_per_token
    if budget.kv >= need:
        return
    message = (
        f"{budget.free:,} bytes are free beside the weights; {budget.share:.0%} of them less "
        f"{budget.peak:,} for a step and {budget.features:,} for pictures leaves {budget.kv:,} "
        f"for KV, {least:,} tokens need {need:,}"
    )
    hint = "lower max_step_tokens or feature_cache_bytes, or set kv_bytes"
    raise ModelRefused(message, hint=hint)
