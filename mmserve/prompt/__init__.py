"""Messages and parts to one Prompt; tokens of an answer to text that can no longer change.

Owns the tokenizer and the chat template. What users write never becomes a control or media
token; everything else is tokenized as Hugging Face would. Called by `engine`, `server`
(placeholders of the native format) and `testing`.

    parts --template--> stretches and slots --tokenizer--> Prompt(token_ids, spans)
    answer's tokens --Detokenizer--> text in whole characters, without stop texts
"""

from mmserve.prompt.detokenizer import Detokenizer
from mmserve.prompt.options import OptionTokens, Rendered, with_text
from mmserve.prompt.placeholders import IMAGE_SPELLINGS, VIDEO_SPELLINGS, split_placeholders
from mmserve.prompt.positions import longer, shorter
from mmserve.prompt.render import PromptBuilder, media_parts
from mmserve.prompt.styles import MediaItem, PictureStyle
from mmserve.prompt.template import ChatTemplate, load_chat_template
from mmserve.prompt.tokenizer import Stretch, Tokenizer, check_text
from mmserve.prompt.tokenizer_files import load_tokenizer

__all__ = [
    "IMAGE_SPELLINGS",
    "VIDEO_SPELLINGS",
    "ChatTemplate",
    "Detokenizer",
    "MediaItem",
    "OptionTokens",
    "PictureStyle",
    "PromptBuilder",
    "Rendered",
    "Stretch",
    "Tokenizer",
    "check_text",
    "load_chat_template",
    "load_tokenizer",
    "longer",
    "media_parts",
    "shorter",
    "split_placeholders",
    "with_text",
]
