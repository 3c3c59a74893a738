"""Times of a step's parts, on the host's clock or on the device's own."""

from __future__ import annotations

import time

import torch

__all__ = ["Mark"]


class Mark:
    """A moment: on a CPU now, on a GPU when its current stream has come so far.

    Args:
        device: whose moment it is.
    """

    __slots__ = ("_at_s", "_event")

    def __init__(self, device: torch.device) -> None:
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)
            self._event.record()
        self._at_s = time.monotonic()

    def ms_since(self, earlier: Mark) -> float:
        """Milliseconds between two moments of one device. Waits until this one has come."""
        if self._event is None or earlier._event is None:
            return (self._at_s - earlier._at_s) * 1e3
        self._event.synchronize()
        return earlier._event.elapsed_time(self._event)

    def wait(self) -> None:
        """Let this moment come."""
        if self._event is not None:
            self._event.synchronize()

    def hold_up(self) -> None:
        """Let the current stream wait for this moment, and the host not."""
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)
