"""What a caller asks: parts, turns, media by source, and the request around them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mmserve.core.sampling import SamplingParams

__all__ = [
    "BytesSource",
    "FramesSource",
    "ImagePart",
    "MediaSource",
    "Part",
    "PathSource",
    "RawPart",
    "Request",
    "TextPart",
    "TokensPart",
    "ToolCall",
    "Turn",
    "UrlSource",
    "VideoPart",
]


@dataclass(frozen=True, slots=True)
class BytesSource:
    """An encoded picture or clip, as read from a file."""

    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class UrlSource:
    """A `http:`, `https:`, `data:` or `file:` address; always goes through the guards."""

    url: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class PathSource:
    """A local path named by the program's own user; never made from HTTP input."""

    path: str


@dataclass(frozen=True, slots=True)
class FramesSource:
    """A clip given as encoded pictures in time order, `fps` frames a second."""

    frames: tuple[BytesSource, ...]
    fps: float = 1.0


MediaSource = BytesSource | UrlSource | PathSource | FramesSource


@dataclass(frozen=True, slots=True)
class TextPart:
    """Plain text; whatever it spells, it never turns into control or media tokens."""

    text: str


@dataclass(frozen=True, slots=True)
class RawPart:
    """Template text: control tokens it spells count as control tokens."""

    text: str


@dataclass(frozen=True, slots=True)
class TokensPart:
    """Token ids, taken as they are."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ImagePart:
    """One picture; `max_pixels` and `min_pixels` bound its size after resizing."""

    source: MediaSource
    max_pixels: int | None = None
    min_pixels: int | None = None


@dataclass(frozen=True, slots=True)
class VideoPart:
    """One clip and how to sample its frames, in the window [start_s, end_s) if given.

    `times_s` names the moments whose frames are taken, and stands alone. `key_frames` takes
    only frames that are stored whole, which costs least to decode.
    """

    source: MediaSource
    num_frames: int | None = None
    fps: float | None = None
    start_s: float | None = None
    end_s: float | None = None
    max_pixels: int | None = None
    min_pixels: int | None = None
    times_s: tuple[float, ...] | None = None
    key_frames: bool = False


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that an assistant called; `arguments` is a JSON object as text."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a conversation, rendered by the model's chat template.

    An `open` turn is the last one: it is rendered without its end, so the answer continues it.
    An assistant's turn may hold calls of tools; a tool's turn names the call that it answers.
    """

    role: str
    parts: tuple[TextPart | RawPart | ImagePart | VideoPart, ...]
    is_open: bool = False
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


Part = TextPart | RawPart | TokensPart | ImagePart | VideoPart | Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt and how to answer it; becomes `num_sequences` sequences.

    `parts` are rendered in order: text outside turns stands as it is, consecutive turns are one
    conversation. A chat call is closed turns followed by an open, empty assistant turn. `tools`
    are definitions as the chat API has them, each a JSON object as text.

    `options` are texts to score behind the prompt, which then generates nothing: sequence 0 is
    the prompt itself, sequence k tells the log-probabilities of option k's tokens as its
    `prompt_logprobs`. They are accepted or refused together.
    """

    request_id: str
    parts: tuple[Part, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    client: str = ""
    cache_salt: str = ""
    priority: int = 0
    chat_template: str | None = None
    add_bos: Literal["auto", "never"] = "auto"
    tools: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    @property
    def num_sequences(self) -> int:
        """Sequences that answer it. Pure."""
        return 1 + len(self.options) if self.options else self.sampling.n
