"""Qwen2-VL: pictures of any size, positions in time, rows and columns."""

from support.families.qwen_cases import family

FAMILY = family("qwen2_vl")
