"""`mmserve show`: a part of the engine draws what it holds, on a small example."""

from __future__ import annotations

import itertools
from enum import Enum
from typing import Annotated

import typer

from mmserve.cli import console
from mmserve.cli.engines import opener_of
from mmserve.cli.flags import MODEL, Settings, with_settings
from mmserve.cli.samples import load_samples, sample_request

__all__ = ["Room", "show"]


class Room(Enum):
    """Parts that can draw themselves."""

    RADIX = "radix"
    SCHED = "sched"


@with_settings(MODEL)
def show(
    ctx: typer.Context,
    room: Annotated[Room, typer.Argument(help="radix: what is cached; sched: who ran when.")],
    *,
    settings: Settings,
) -> None:
    """Draw what a part of the engine holds: some questions about the sample media are asked.

    radix is drawn after the last answer, sched when the first answer begins.
    """
    with opener_of(ctx)(settings.engine()) as client:
        tickets = [
            client.submit(sample_request(f"show-{sample.name}-{index}", sample, index))
            for sample in load_samples()
            for index in range(len(sample.questions))
        ]
        drawing = None
        for _ in itertools.chain.from_iterable(ticket.outputs() for ticket in tickets):
            if drawing is None and room is Room.SCHED:
                drawing = client.drawing(room.value)
        console.say(drawing or client.drawing(room.value))
