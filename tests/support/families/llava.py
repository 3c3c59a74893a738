"""LLaVA-1.5: CLIP tower, Llama; frames of clips are pictures."""

from support.checkpoints import tiny_llava
from support.proof import PICTURE_CASES, TEXT_CASES, Family

FAMILY = Family("llava", lambda: tiny_llava(context=1024), (*TEXT_CASES, *PICTURE_CASES))
