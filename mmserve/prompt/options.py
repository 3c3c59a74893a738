"""Token ids of texts put behind a prompt, without tokenizing all of it for each of them.

    settled           tail                  option
    ... <|assistant|> I see, as I said,     a cube
    [--- once ---]    [- each time, where -------]   control tokens and media part texts
                               [--- it does ----]    else the last words show the same

An option's tokens are what follows the prompt's when both are tokenized together, if the
prompt's stay as they are; else the option is tokenized alone, as a text inside a prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mmserve.core import Part, Prompt, TextPart, Turn
from mmserve.prompt.tokenizer import Stretch, Tokenizer, cut_stretches

__all__ = ["OptionTokens", "Rendered", "with_text"]

_LAST_CHARACTERS = 256
"""Characters of a long text that are tokenized again with each option."""
_UNTOUCHED = 8
"""Tokens at the start of these that show that the option changes nothing before them."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt, and the text it ends with since its last picture or given tokens.

    `is_tail_first`: nothing stands before that text.
    """

    prompt: Prompt
    tail: tuple[Stretch, ...]
    is_tail_first: bool


@dataclass(frozen=True, slots=True)
class _Tail:
    """Text at a prompt's end and its tokens."""

    stretches: tuple[Stretch, ...]
    is_first: bool
    token_ids: tuple[int, ...]


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
        self._prompt_ids = tuple(rendered.prompt.token_ids.tolist())
        self._render_with = render_with
        settled, stretches = tokenizer.split_settled(rendered.tail)
        whole = self._tail(stretches, is_first=rendered.is_tail_first and not settled)
        self._tails = (*self._last_words(whole), whole)

    def ids(self, option: str) -> tuple[int, ...]:
        """The option's tokens. Raises BadRequest for text that cannot be served. Pure."""
        if self._render_with is not None:
            joined = tuple(self._render_with(option).token_ids.tolist())
            found = _behind(joined, self._prompt_ids)
        else:
            found = self._behind_tail(option)
        return tuple(self._tokenizer.encode_inside(option)) if found is None else found

    def _behind_tail(self, option: str) -> tuple[int, ...] | None:
        """What the joint tokens have behind the prompt's, if those stay."""
        found: tuple[int, ...] | None = None
        for tail in self._tails:
            stretches = (*tail.stretches, Stretch(option))
            joined = self._encode(stretches, is_first=tail.is_first)
            found = _behind(joined, tail.token_ids)
            if joined[:_UNTOUCHED] == tail.token_ids[:_UNTOUCHED]:
                break
        return found

    def _last_words(self, whole: _Tail) -> tuple[_Tail, ...]:
        """The last words of a long text, if their tokens do not depend on what is before."""
        text = "".join(stretch.text for stretch in whole.stretches)
        cut = text.rfind(" ", 0, max(0, len(text) - _LAST_CHARACTERS))
        if cut <= 0 or text[cut - 1].isspace():
            return ()
        last = self._tail(cut_stretches(whole.stretches, cut)[1], is_first=False)
        num_tokens = len(last.token_ids)
        is_same = num_tokens > 0 and whole.token_ids[-num_tokens:] == last.token_ids
        return (last,) if is_same else ()

    def _tail(self, stretches: Sequence[Stretch], *, is_first: bool) -> _Tail:
        token_ids = self._encode(stretches, is_first=is_first)
        return _Tail(tuple(stretches), is_first, token_ids)

    def _encode(self, stretches: Sequence[Stretch], *, is_first: bool) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode_stretches(stretches, at_start=is_first))


def _behind(joined: tuple[int, ...], before: tuple[int, ...]) -> tuple[int, ...] | None:
    """What follows `before` in `joined`; None if nothing does, or it begins otherwise."""
    num_before = len(before)
    is_behind = len(joined) > num_before and joined[:num_before] == before
    return joined[num_before:] if is_behind else None


def with_text(parts: Sequence[Part], text: str) -> tuple[Part, ...]:
    """Parts with a text at their end, inside the open turn if there is one. Pure."""
    last = parts[-1]
    if isinstance(last, Turn) and last.is_open:
        return (*parts[:-1], replace(last, parts=(*last.parts, TextPart(text))))
    return (*parts, TextPart(text))
