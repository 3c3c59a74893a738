"""Text that an API has written beyond what the program asked for so far."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mmserve.core import Finish, Output

__all__ = ["Cut", "Surplus", "certain_length", "cut", "earliest_stop", "token_ends"]


@dataclass(frozen=True, slots=True)
class Surplus:
    """An answer's unused rest.

    Args:
        text: the text.
        ends: where each token of `text` ends, in characters; None if the API told no tokens.
        most_tokens: an upper bound of the tokens in `text`.
        has_ended: whether the model ended by itself behind `text`.
        values: the sampling values it was drawn with.
        request_id: the latest call it was drawn by.
    """

    text: str = ""
    ends: tuple[int, ...] | None = ()
    most_tokens: int = 0
    has_ended: bool = False
    values: object = None
    request_id: str = ""

    def extended(self, outputs: Sequence[Output]) -> Surplus:
        """With the answer of one more call behind it, as far as it has come. Pure."""
        text = "".join(output.text for output in outputs)
        new_ends = token_ends(text, outputs)
        ends: tuple[int, ...] | None = None
        if self.ends is not None and new_ends is not None:
            ends = (*self.ends, *(len(self.text) + end for end in new_ends))
        last = outputs[-1]
        num_tokens = last.usage.completion_tokens or len(text.encode())  # not all APIs count
        return replace(
            self,
            text=self.text + text,
            ends=ends,
            most_tokens=self.most_tokens + num_tokens,
            has_ended=last.finish is not None and last.finish.reason == "stop",
            request_id=last.request_id,
        )

    def without(self, num_characters: int) -> Surplus:
        """Without its first characters; a token that is cut stays one token. Pure."""
        ends = self.ends
        if ends is not None:
            ends = tuple(end - num_characters for end in ends if end > num_characters)
        return replace(self, text=self.text[num_characters:], ends=ends)

    def behind(self, constant: str) -> Surplus:
        """What is left when the program appends a constant text: nothing if it differs. Pure.

        A text that goes on past the surplus leaves nothing either.
        """
        if self.text and self.text.startswith(constant):
            return self.without(len(constant))
        return Surplus()

    def num_tokens(self, num_characters: int) -> int | None:
        """Tokens in the first characters, a cut one included; None if unknown. Pure."""
        if self.ends is None:
            return None
        before = sum(end < num_characters for end in self.ends)
        return before + 1 if num_characters else 0


def token_ends(text: str, outputs: Sequence[Output]) -> tuple[int, ...] | None:
    """Where each token of an answer ends in `text`; None if the API did not tell. Pure."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    seen, ends = "", []
    for output in outputs:
        for token in output.logprobs:
            seen += decoder.decode(token.piece)
            ends.append(len(seen))
    if not seen.startswith(text):
        return None
    return tuple(end for end in ends if end <= len(text))


@dataclass(frozen=True, slots=True)
class Cut:
    """The part of a surplus that is one gen's value, and why it ends there."""

    num_characters: int
    num_tokens: int
    finish: Finish


def earliest_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """Where the first stop begins, and which it is; of two at one place the longer. Pure."""
    found = [(text.index(stop), -len(stop), stop) for stop in stops if stop and stop in text]
    if not found:
        return None
    place, _, stop = min(found)
    return place, stop


def cut(surplus: Surplus, stops: Sequence[str], max_tokens: int) -> Cut | None:
    """The value at the front of `surplus`, or None if more text is needed.

    Raises LookupError if only unknown token boundaries could tell. Pure.
    """
    text = surplus.text
    found = earliest_stop(text, stops)
    length = len(text) if found is None else found[0]
    num_tokens = surplus.num_tokens(length)
    if num_tokens is None:
        # Every token has a byte at least, and no part has more tokens than the whole.
        most = min(len(text[:length].encode()), surplus.most_tokens)
        if most > max_tokens:
            raise LookupError
        num_tokens = most
    if num_tokens > max_tokens and surplus.ends is not None:
        end = surplus.ends[max_tokens - 1]
        return Cut(end, max_tokens, Finish("length"))
    if found is not None:
        return Cut(length, num_tokens, Finish("stop", found[1]))
    if surplus.has_ended:
        return Cut(length, num_tokens, Finish("stop"))
    if num_tokens == max_tokens:
        return Cut(length, num_tokens, Finish("length"))
    return None


def certain_length(surplus: Surplus, stops: Sequence[str], max_tokens: int) -> int:
    """Characters at the front of `surplus` that are of the value whatever comes. Pure."""
    text = surplus.text
    found = earliest_stop(text, stops)
    held = max((len(stop) for stop in stops), default=1) - 1
    length = found[0] if found is not None else max(0, len(text) - held)
    if surplus.ends is None:
        return 0
    return (
        min(length, surplus.ends[max_tokens - 1]) if len(surplus.ends) >= max_tokens else length
    )
