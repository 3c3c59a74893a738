"""Declares two operators before torchvision is imported; lies in an environment beside it.

torchvision's wheel expects them of another build of torch than the CPU's, and does not import
without. Nothing here calls them.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["OPERATORS", "Declaring"]

OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


class Declaring:
    """A finder of modules that finds none, and declares the operators when it is asked."""

    def __init__(self) -> None:
        self._library: Any = None

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        """Changes: torch's operators, at the first question for torchvision."""
        if name == "torchvision" and self._library is None:
            import torch  # noqa: PLC0415  not in processes that never ask

            self._library = torch.library.Library("torchvision", "DEF")
            for operator in OPERATORS:
                self._library.define(operator)


sys.meta_path.insert(0, Declaring())  # type: ignore[arg-type]
