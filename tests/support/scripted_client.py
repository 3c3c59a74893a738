"""A `core.Client` that answers by a rule, and remembers what it was asked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Literal

from mmserve.core import (
    Finish,
    FrameReport,
    ImagePart,
    MmserveError,
    ModelInfo,
    Output,
    PromptLook,
    PromptReport,
    Release,
    Request,
    TextPart,
    Timing,
    Turn,
    Usage,
    VideoPart,
)

__all__ = ["ScriptedClient", "ScriptedTicket", "question_of"]

MODEL = ModelInfo(
    name="scripted",
    family="none",
    path="",
    context_length=512,
    vocab_size=256,
    eos_token_ids=(0,),
    bos_token_id=None,
    image_token_id=1,
    num_slots=512,
    kv_bytes_per_token=1,
    feature_bytes_per_token=1,
    fingerprint=bytes(16),
)
Rule = Callable[[Request], str | MmserveError | Finish]


def question_of(request: Request) -> str:
    """The text of the last user turn's last text part. Pure."""
    turns = [part for part in request.parts if isinstance(part, Turn)]
    turn = next(turn for turn in reversed(turns) if turn.role == "user")
    last = turn.parts[-1]
    assert isinstance(last, TextPart)
    return last.text


class ScriptedTicket:
    """A request whose fate is known: a text, a refusal, or an end."""

    def __init__(self, request: Request, fate: str | MmserveError | Finish) -> None:
        self.request_id = request.request_id
        self.request = request
        self.fate = fate
        self.is_cancelled = False

    def report(self, timeout_s: float | None = None) -> PromptReport:
        """One clip of two frames for each video of the request."""
        if isinstance(self.fate, MmserveError):
            raise self.fate
        turns = [part for part in self.request.parts if isinstance(part, Turn)]
        clips = [part for turn in turns for part in turn.parts if isinstance(part, VideoPart)]
        return PromptReport(tuple(range(10)), tuple(FrameReport((0.0, 0.5)) for _ in clips))

    async def report_async(self) -> PromptReport:
        """Like `report`."""
        return self.report()

    def outputs(self) -> Iterator[Output]:
        """The text in two pieces, then the end."""
        self.report()
        text = self.fate if isinstance(self.fate, str) else ""
        finish = self.fate if isinstance(self.fate, Finish) else Finish("stop")
        usage = Usage(10, len(text), video_tokens=6, cached_tokens=4)
        half = len(text) // 2
        yield Output(self.request_id, 0, text[:half], (2,), usage)
        timing = Timing(first_token=1.5, total=2.0)
        yield Output(self.request_id, 0, text[half:], (3,), usage, finish=finish, timing=timing)

    async def outputs_async(self) -> AsyncIterator[Output]:
        """Like `outputs`."""
        for output in self.outputs():
            yield output

    def cancel(self) -> None:
        """Remember it."""
        self.is_cancelled = True


class ScriptedClient:
    """Implements `core.Client`; answers a question with its upper-case text unless told."""

    def __init__(self, rule: Rule = lambda request: question_of(request).upper()) -> None:
        self.rule = rule
        self.tickets: list[ScriptedTicket] = []
        self.prepared: list[ImagePart | VideoPart] = []
        self.model = MODEL

    @property
    def questions(self) -> list[str]:
        """Every question asked so far, in order."""
        return [question_of(ticket.request) for ticket in self.tickets]

    def submit(self, request: Request) -> ScriptedTicket:
        """A ticket whose fate is the rule's."""
        ticket = ScriptedTicket(request, self.rule(request))
        self.tickets.append(ticket)
        return ticket

    def prepare(
        self, part: ImagePart | VideoPart, *, cache_salt: str = "", client: str = ""
    ) -> None:
        """Remember the part."""
        self.prepared.append(part)

    def hold(self, part: ImagePart | VideoPart, *, cache_salt: str = "") -> Release:
        """Nothing is fetched."""
        return lambda: None

    def tokenize(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Bytes."""
        return list(text.encode())

    def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Bytes."""
        return bytes(token_ids).decode(errors="replace")

    def render(self, request: Request) -> PromptLook:
        """Ten tokens, and nothing to see."""
        return PromptLook(token_ids=tuple(range(10)))

    def flush_cache(self, timeout_s: float = 0.0) -> bool:
        """Nothing is cached."""
        return True

    def counters(self) -> dict[str, float]:
        """As if every medium was decoded once."""
        return {"media_decodes_total": 1.0, "encoded_items_total": 1.0}

    def drawing(self, room: str, form: Literal["text", "svg", "json"] = "text") -> str:
        """The room's name, and the form if it is another than text."""
        return f"a drawing of {room}" + ("" if form == "text" else f" as {form}")

    def close(self) -> None:
        """Nothing to give back."""

    def __enter__(self) -> ScriptedClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
