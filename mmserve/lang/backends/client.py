"""An engine in this process, through the `Client` port."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from mmserve.core import (
    BackendFailed,
    Client,
    ImagePart,
    Output,
    Request,
    Ticket,
    VideoPart,
    template_text,
)
from mmserve.lang.backends.abilities import EVERYTHING, Abilities
from mmserve.lang.backends.port import Call, OptionScore, Scores
from mmserve.lang.backends.scoring import whole_outputs

__all__ = ["ClientBackend"]


class _TicketCall:
    """A ticket as a call."""

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket

    def outputs(self) -> Iterator[Output]:
        return self._ticket.outputs()

    def cancel(self) -> None:
        self._ticket.cancel()


class ClientBackend:
    """Answers by any object with the `Client` port.

    Args:
        client: the engine.
        chat_template: a Jinja template or a file that holds one; the model's own when None.
    """

    def __init__(self, client: Client, chat_template: str | Path | None = None) -> None:
        self._client = client
        self._chat_template = None if chat_template is None else template_text(chat_template)

    @property
    def name(self) -> str:
        """The model's name."""
        return self._client.model.name

    @property
    def abilities(self) -> Abilities:
        """Everything."""
        return EVERYTHING

    def start(self, request: Request) -> _TicketCall:
        """Submit it. Does not wait for the model."""
        if self._chat_template is not None:
            request = replace(request, chat_template=self._chat_template)
        return _TicketCall(self._client.submit(request))

    def prepare(self, part: ImagePart | VideoPart, cache_salt: str) -> None:
        """Tell the engine that calls will soon ask about it; see `Backend.prepare`."""
        self._client.prepare(part, cache_salt=cache_salt)

    def score(
        self, request: Request, options: Sequence[str], hold: Callable[[Call], None]
    ) -> Scores:
        """Score options by one call that generates nothing; see `Backend.score`."""
        call = self.start(replace(request, options=tuple(options)))
        hold(call)
        end, *scored = whole_outputs(call)
        if len(scored) != len(options):
            message = "the backend did not score every option"
            raise BackendFailed(message, status=None)
        return Scores(
            end,
            tuple(OptionScore(one.prompt_logprobs or (), one.logprobs) for one in scored),
        )

    def flush_cache(self) -> bool:
        """Forget cached prefixes; False if calls under way forbid it."""
        return self._client.flush_cache()

    def server_info(self) -> dict[str, object]:
        """Facts of the model, and the engine's counters."""
        model = asdict(self._client.model)
        model["fingerprint"] = self._client.model.fingerprint.hex()
        return {"model": model, "counters": self._client.counters()}
