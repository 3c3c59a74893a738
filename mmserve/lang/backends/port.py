"""What the language asks of whoever answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from mmserve.core import ImagePart, Output, Request, TokenLogprob, VideoPart
from mmserve.lang.backends.abilities import Abilities

__all__ = ["Backend", "Call", "OptionScore", "Scores"]


@dataclass(frozen=True, slots=True)
class OptionScore:
    """An option's tokens after the prompt, and the likeliest next token where one is told."""

    tokens: tuple[TokenLogprob, ...]
    following: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Scores:
    """The prompt's own end, and a score for each option in order.

    A backend that can choose but not score names the `winner` by its number, and has no scores.
    """

    prompt_end: Output
    options: tuple[OptionScore, ...]
    winner: int | None = None


class Call(Protocol):
    """A request under way."""

    def outputs(self) -> Iterator[Output]:
        """News of all sequences until each has ended. Raises what went wrong."""
        ...

    def cancel(self) -> None:
        """Abort it. Never blocks on the backend; callable from any thread, more than once."""
        ...


class Backend(Protocol):
    """Answers requests. Used from many threads at once."""

    @property
    def name(self) -> str:
        """What it is called in messages."""
        ...

    @property
    def abilities(self) -> Abilities:
        """What it can do; the rest is refused at the append."""
        ...

    def start(self, request: Request) -> Call:
        """Hand a request in. Does not wait for the model."""
        ...

    def prepare(self, part: ImagePart | VideoPart, cache_salt: str) -> None:
        """Hear that calls will soon ask about this picture or clip.

        A hint: returns at once, never raises, and may do nothing.
        """
        ...

    def score(
        self, request: Request, options: Sequence[str], hold: Callable[[Call], None]
    ) -> Scores:
        """Log-probabilities of each option's tokens after the prompt of `request`.

        Or the winner by the default rule, if the backend has choices but no rules. Waits. Every
        call made is handed to `hold` before it is waited for. Raises what they raise.
        """
        ...

    def flush_cache(self) -> bool:
        """Forget cached prefixes; False if calls under way forbid it."""
        ...

    def server_info(self) -> dict[str, object]:
        """What the backend says about itself."""
        ...
