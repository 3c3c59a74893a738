"""Token ids of texts put behind a prompt, without tokenizing the prompt for each of them.

    settled           tail         option
    ... <|assistant|> I see        a cube     only what lies behind the last control token or
    [--- once ---]    [- each time ------]    picture can change with what follows

An option's tokens are what follows the prompt's when both are tokenized together, if the
prompt's stay as they are; else the option is tokenized alone, as a text inside a prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mmserve.core import Part, Prompt, TextPart, Turn
from mmserve.prompt.tokenizer import Stretch, Tokenizer

__all__ = ["OptionTokens", "Rendered", "with_text"]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt, and the text it ends with since its last picture or given tokens.

    `is_tail_first`: nothing stands before that text.
    """

    prompt: Prompt
    tail: tuple[Stretch, ...]
    is_tail_first: bool


class OptionTokens:
    """Finds tokens of options behind one prompt.

    Args:
        tokenizer: the model's vocabulary.
        rendered: the prompt.
        render_with: the prompt that has a text at its end, where that is more than the prompt
            and the text; else None.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        rendered: Rendered,
        render_with: Callable[[str], Prompt] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._prompt_ids = rendered.prompt.token_ids.tolist()
        self._render_with = render_with
        settled, self._tail = tokenizer.split_settled(rendered.tail)
        self._is_tail_first = rendered.is_tail_first and not any(one.text for one in settled)
        self._tail_ids = self._encode(self._tail)

    def ids(self, option: str) -> tuple[int, ...]:
        """The option's tokens. Raises BadRequest for text that cannot be served. Pure."""
        if self._render_with is None:
            before, joined = self._tail_ids, self._encode([*self._tail, Stretch(option)])
        else:
            before = self._prompt_ids
            joined = self._render_with(option).token_ids.tolist()
        num_before = len(before)
        if len(joined) > num_before and joined[:num_before] == before:
            return tuple(joined[num_before:])
        return tuple(self._tokenizer.encode_inside(option))

    def _encode(self, stretches: Sequence[Stretch]) -> list[int]:
        return self._tokenizer.encode_stretches(stretches, at_start=self._is_tail_first)


def with_text(parts: Sequence[Part], text: str) -> tuple[Part, ...]:
    """Parts with a text at their end, inside the open turn if there is one. Pure."""
    last = parts[-1]
    if isinstance(last, Turn) and last.is_open:
        return (*parts[:-1], replace(last, parts=(*last.parts, TextPart(text))))
    return (*parts, TextPart(text))
