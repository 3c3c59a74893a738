"""The seams: what rooms ask of each other, so that each can be replaced in a test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from mmserve.core.look import MediaLook, PromptLook
from mmserve.core.model import ModelInfo
from mmserve.core.output import Output, PromptReport
from mmserve.core.plan import ForwardPlan, SampledTokens
from mmserve.core.request import ImagePart, Request, VideoPart

if TYPE_CHECKING:  # keeps the start of the command line and the language light
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Begun", "Client", "Jump", "Matcher", "Pending", "Release", "Runner", "Ticket"]

Release = Callable[[], None]
"""Ends a `Client.hold`."""


class Pending(Protocol):
    """A step under way on the device."""

    def finish(self) -> SampledTokens:
        """Wait for the step and read what it gave. Once, in the order of the launches.

        Raises RunnerFailed if nothing of the step holds.
        """
        ...


class Begun(Protocol):
    """Rows of a foreseen step under way on the device; nothing is drawn yet."""

    @property
    def plan(self) -> ForwardPlan:
        """What was foreseen."""
        ...


class Runner(Protocol):
    """Carries out plans on one device. May be slow; never called from two threads.

    Steps run in the order of their launches, so a plan may count on what an earlier one writes.
    Two may be under way at once. If a launch fails, earlier steps are not affected.
    """

    @property
    def looks_ahead(self) -> bool:
        """Whether it pays to begin a step before the one before is back. Pure."""
        ...

    def launch(self, plan: ForwardPlan, begun: Begun | None = None) -> Pending:
        """Begin the step; where the device works by itself, return before it is done.

        Args:
            plan: the step.
            begun: the same rows, perhaps among others, that were begun early; they are not
                computed again.

        The plan's masks are asked for here, behind the launch of its rows. Changes: KV store,
        feature store. Raises RunnerFailed if nothing of the step holds.
        """
        ...

    def begin(self, plan: ForwardPlan, after: Pending) -> Begun:
        """Compute the rows of a foreseen step, up to where tokens are drawn.

        Args:
            plan: rows of one token each, `UNDRAWN`: what `after` draws for their sequences.
            after: the step launched last, not finished.

        Slots that it writes have no owner yet, so it may be thrown away. Changes: KV store.
        Raises RunnerFailed.
        """
        ...

    def execute(self, plan: ForwardPlan) -> SampledTokens:
        """Launch the step and finish it. Changes and raises as both."""
        ...


@dataclass(frozen=True, slots=True)
class Jump:
    """Text that a grammar forces, in the tokens the tokenizer gives for the whole answer.

    Args:
        num_replaced: last accepted tokens that give way, since text and tokens that follow are
            one token now, or because they were not canonical; their text stays.
        token_ids: what comes instead, and after them.
        is_end: whether nothing but an end token may follow.
    """

    num_replaced: int
    token_ids: tuple[int, ...]
    is_end: bool = False


class Matcher(Protocol):
    """Where one answer stands in its grammar. Mutable; owned by one sequence."""

    def allowed(self) -> NDArray[np.uint32]:
        """Bitmask uint32 [W] of tokens that may come next; bit t % 32 of word t // 32. Pure."""
        ...

    def accept(self, token_id: int) -> None:
        """Move on by one token. Changes: the state. Raises Broken if it was not allowed."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Take back the last `num_tokens` accepted tokens. Changes: the state."""
        ...

    def jump(self, num_settled: int = 0, most: int | None = None) -> Jump | None:
        """The text that is certain to come next, in canonical tokens; None if there is none.

        Args:
            num_settled: so many accepted tokens at the start must stay.
            most: tokens that it may add to those that stay.

        Asked once after each token. Take it with `rollback(num_replaced)`, and `accept` of each
        of its tokens.
        """
        ...

    def fork(self) -> Matcher:
        """An independent copy. Pure."""
        ...

    @property
    def is_finished(self) -> bool:
        """Whether nothing but an end token may come."""
        ...


class Ticket(Protocol):
    """A request under way. Safe from any thread; outputs are read once, by one reader."""

    request_id: str

    def report(self, timeout_s: float | None = None) -> PromptReport:
        """Wait until the request is accepted. Raises the refusal if it is not."""
        ...

    async def report_async(self) -> PromptReport:
        """Like `report`, without blocking the event loop."""
        ...

    def outputs(self) -> Iterator[Output]:
        """Outputs of all sequences as they come, until each has ended. Raises a refusal."""
        ...

    def outputs_async(self) -> AsyncIterator[Output]:
        """Like `outputs`, without blocking the event loop."""
        ...

    def cancel(self) -> None:
        """Abort what still runs; unfinished sequences end with reason "abort". Idempotent."""
        ...


class Client(Protocol):
    """The engine as surfaces see it; server, language and batch know nothing else of it."""

    @property
    def model(self) -> ModelInfo:
        """Facts of the model served."""
        ...

    def submit(self, request: Request) -> Ticket:
        """Hand a request in. Never blocks on the model; a refusal is raised by the ticket."""
        ...

    def prepare(
        self, part: ImagePart | VideoPart, *, cache_salt: str = "", client: str = ""
    ) -> None:
        """Say that requests of this salt will soon have this part; returns at once.

        A hint: what a request would fetch, decode and encode may begin now, and a request that
        comes meanwhile shares it. Never raises for the content, and may do nothing: a part that
        cannot be used is refused when a request uses it. Work is charged to `client`. Said
        twice is said once.
        """
        ...

    def hold(self, part: ImagePart | VideoPart, *, cache_salt: str = "") -> Release:
        """Keep what requests of this salt fetch of this part, until the result is called.

        So they share one fetch however slowly they follow each other. Fetches nothing itself,
        returns at once, and never raises for the content. The result may be called twice.
        """
        ...

    def look(self, part: ImagePart | VideoPart) -> MediaLook:
        """What the model will see of a picture or clip, with the cost of each stage.

        Blocks until it is decoded, preprocessed and encoded; nothing of it stays cached under a
        request's own salt. Raises what a request with this part is refused with.
        """
        ...

    def render(self, request: Request) -> PromptLook:
        """The prompt that a request would have, with small pictures of what stands in it.

        Blocks until media are fetched and decoded; nothing is encoded, generated or cached.
        Raises what the request is refused with.
        """
        ...

    def tokenize(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Token ids of template text (control tokens count). Pure."""
        ...

    def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids. Pure."""
        ...

    def flush_cache(self, timeout_s: float = 0.0) -> bool:
        """Forget cached KV and features; False if requests still run after `timeout_s`."""
        ...

    def counters(self) -> dict[str, float]:
        """Counters and gauges by `series_key`, without the `mmserve_` prefix. Pure."""
        ...

    def drawing(self, room: str, form: Literal["text", "svg", "json"] = "text") -> str:
        """A room's state (`radix`, `sched`, `constrained`) as text, or as an SVG file. Pure.

        Of `radix` there is JSON too: its nodes, the queue and memory, without any text.
        Raises NotFound for a room or form that there is not.
        """
        ...
