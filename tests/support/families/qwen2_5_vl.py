"""Qwen2.5-VL: attention in windows, positions in time that follow the clip's seconds."""

from support.families.qwen_cases import family

FAMILY = family("qwen2_5_vl")
