"""Packages that only transformers' side of a proof needs; they lie beside the environment.

torchvision's wheel expects two operators of another build of torch than the CPU's. They are
declared here and never called. Import this before transformers.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

__all__ = ["FOLDER"]

FOLDER = Path(sys.prefix) / "reference"
"""Where `make setup` puts them."""

if FOLDER.is_dir():
    sys.path.append(str(FOLDER))
    _operators = torch.library.Library("torchvision", "DEF")
    _operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _operators.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
