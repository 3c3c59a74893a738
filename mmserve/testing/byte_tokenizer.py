"""A vocabulary of the 256 bytes and a few control tokens, with a chat template to match."""

from __future__ import annotations

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from mmserve.core import MediaStyle
from mmserve.prompt import ChatTemplate, PromptBuilder, Tokenizer
from mmserve.prompt.token_bytes import byte_alphabet

__all__ = ["BYTE_CHAT_TEMPLATE", "BYTE_IMAGE_TOKEN_ID", "byte_prompt_builder", "byte_tokenizer"]

_CONTROLS = (
    "<pad>",
    "<s>",
    "<|end|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|tool|>",
    "<image>",
    "<video>",
)

BYTE_IMAGE_TOKEN_ID = 256 + _CONTROLS.index("<image>")
"""Placeholder of a picture's tokens."""

BYTE_CHAT_TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
  {{- '<|' + message.role + '|>' }}
  {%- if message.content is string %}{{ message.content }}
  {%- else %}
    {%- for part in message.content %}
      {{- part.text if part.type == 'text' else '<' + part.type + '>' }}
    {%- endfor %}
  {%- endif %}
  {{- '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""
"""Every turn is `<|role|>...<|end|>`, parts in order; the prompt begins with `<s>`."""


def byte_tokenizer() -> Tokenizer:
    """A tokenizer whose tokens 0 to 255 are the bytes of that value; then control tokens.

    `<s>` begins plain prompts, `<|end|>` ends answers. Pure.
    """
    backend = Backend(models.BPE(byte_alphabet(), []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in _CONTROLS]
    )
    named = {
        "pad_token": "<pad>",
        "bos_token": "<s>",
        "eos_token": "<|end|>",
        "image_token": "<image>",
        "video_token": "<video>",
    }
    return Tokenizer(backend, special_tokens=named, adds_bos=True)


def byte_prompt_builder(tokenizer: Tokenizer | None = None) -> PromptBuilder:
    """A builder over the byte vocabulary and its template, for a model with pictures. Pure."""
    tokenizer = tokenizer or byte_tokenizer()
    template = ChatTemplate(BYTE_CHAT_TEMPLATE, tokenizer.special_tokens)
    return PromptBuilder(
        tokenizer, template, media=MediaStyle(image_token_id=BYTE_IMAGE_TOKEN_ID)
    )
