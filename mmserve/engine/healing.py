"""A prompt that ends inside a token: its last token is taken back, and the answer spells it.

"... see http:"   tokens  ... see  http  :     with `heal_prompt`  ... see  http | answer ":..."
"""

from __future__ import annotations

from collections.abc import Sequence

from mmserve.constrained import GrammarCompiler, NewMatcher
from mmserve.core import Constraint, Part, Prompt, RawPart, TextPart, Turn
from mmserve.prompt import Tokenizer, shorter

__all__ = ["PromptHealer"]


class PromptHealer:
    """Takes back last tokens of prompts of one model. Safe from several threads."""

    def __init__(self, tokenizer: Tokenizer, grammars: GrammarCompiler) -> None:
        self._tokenizer = tokenizer
        self._grammars = grammars

    def take_back(self, prompt: Prompt, parts: Sequence[Part]) -> tuple[Prompt, bytes]:
        """The prompt without its last token, and the text of that.

        Nothing is taken back, and the text is empty, where the prompt does not end with a
        caller's text: behind a picture, token ids, or what a template writes. Pure.
        """
        last = prompt.num_tokens - 1
        token_id = int(prompt.token_ids[last])
        text = self._tokenizer.piece(token_id)
        is_media = bool(prompt.spans) and prompt.spans[-1].end > last
        is_text = token_id not in self._tokenizer.special_ids and _is_whole(text)
        if last < 1 or is_media or not is_text or not _ends_with_text(parts):
            return prompt, b""
        return shorter(prompt, 1), text

    def matcher(self, constraint: Constraint | None, text: bytes) -> NewMatcher:
        """A maker of matchers for answers that spell `text` first.

        Raises ConstraintRefused. Cost: milliseconds.
        """
        return self._grammars.healing(constraint, text)


def _ends_with_text(parts: Sequence[Part]) -> bool:
    last = parts[-1] if parts else None
    if isinstance(last, Turn):
        return last.is_open and bool(last.parts) and _is_text(last.parts[-1])
    return _is_text(last)


def _is_text(part: Part | None) -> bool:
    return isinstance(part, TextPart | RawPart) and bool(part.text)


def _is_whole(text: bytes) -> bool:
    try:
        return bool(text.decode())
    except UnicodeDecodeError:
        return False
