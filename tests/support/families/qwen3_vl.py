"""Qwen3-VL: features for the first layers too, times of a clip's frames in words."""

from support.families.qwen_cases import family

FAMILY = family("qwen3_vl")
