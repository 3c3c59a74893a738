"""What API process and engine process say to each other; frozen values, written by `codec`.

A `number` is the sender's own count of requests and calls; every answer repeats it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from mmserve.core import (
    EngineConfig,
    ImagePart,
    MediaLook,
    MmserveError,
    ModelInfo,
    Output,
    PromptLook,
    PromptReport,
    Request,
    VideoPart,
)

__all__ = [
    "MESSAGES",
    "Beat",
    "Call",
    "Cancel",
    "Close",
    "Counters",
    "Detokenize",
    "Draw",
    "EndHold",
    "Failed",
    "FlushCache",
    "Hold",
    "Look",
    "Message",
    "NotOpened",
    "Open",
    "Prepare",
    "Ready",
    "Render",
    "Submit",
    "Tokenize",
    "Told",
    "Value",
]


# --- to the engine -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Open:
    """The first word: which engine to open, and how often to say that it is well."""

    config: EngineConfig
    beat_s: float


@dataclass(frozen=True, slots=True)
class Submit:
    """A request; answered by its report and outputs in turn, or by `Failed`."""

    number: int
    request: Request


@dataclass(frozen=True, slots=True)
class Cancel:
    """The reader of a request has lost interest."""

    number: int


@dataclass(frozen=True, slots=True)
class Prepare:
    """A hint; not answered."""

    part: ImagePart | VideoPart
    cache_salt: str
    client: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Keep what is fetched of a part until the `EndHold` of this number; not answered."""

    number: int
    part: ImagePart | VideoPart
    cache_salt: str


@dataclass(frozen=True, slots=True)
class EndHold:
    """The end of a `Hold`."""

    number: int


@dataclass(frozen=True, slots=True)
class Look:
    """A call of `Client.look`."""

    number: int
    part: ImagePart | VideoPart


@dataclass(frozen=True, slots=True)
class Render:
    """A call of `Client.render`."""

    number: int
    request: Request


@dataclass(frozen=True, slots=True)
class Tokenize:
    """A call of `Client.tokenize`."""

    number: int
    text: str
    add_special_tokens: bool


@dataclass(frozen=True, slots=True)
class Detokenize:
    """A call of `Client.detokenize`."""

    number: int
    token_ids: Sequence[int]
    skip_special_tokens: bool


@dataclass(frozen=True, slots=True)
class FlushCache:
    """A call of `Client.flush_cache`."""

    number: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Counters:
    """A call of `Client.counters`."""

    number: int


@dataclass(frozen=True, slots=True)
class Draw:
    """A call of `Client.drawing`."""

    number: int
    room: str
    form: Literal["text", "svg", "json"]


@dataclass(frozen=True, slots=True)
class Close:
    """The last word: end what is open, and the process."""


Value = MediaLook | PromptLook | dict[str, float] | list[int] | str | bool
"""What calls give."""


# --- from the engine -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine is open."""

    model: ModelInfo


@dataclass(frozen=True, slots=True)
class NotOpened:
    """The engine cannot be opened, for a reason that its user should read."""

    error: MmserveError | OSError


@dataclass(frozen=True, slots=True)
class Beat:
    """The process lives, and its loop last came by `loop_age_s` seconds ago."""

    loop_age_s: float


@dataclass(frozen=True, slots=True)
class Told:
    """News of a request (that it is accepted, then its outputs), or what a call gave."""

    number: int
    value: PromptReport | Output | Value


@dataclass(frozen=True, slots=True)
class Failed:
    """A request is not answered, or what a call raised; nothing follows."""

    number: int
    error: MmserveError


Call = Look | Render | Tokenize | Detokenize | FlushCache | Counters | Draw
"""Messages that one `Told` or `Failed` answers."""
Message = (
    Open | Submit | Cancel | Prepare | Hold | EndHold | Call | Close
    | Ready | NotOpened | Beat | Told | Failed
)  # fmt: skip
MESSAGES: tuple[type[Message], ...] = get_args(Message)
