"""How commands get an engine: through the context, so that a test can give another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import typer

from mmserve.cli import console
from mmserve.core import Client, EngineConfig

if TYPE_CHECKING:
    from mmserve.engine.remote import Supervisor

__all__ = ["OpenEngine", "open_engine", "open_supervised", "opener_of"]

OpenEngine = Callable[[EngineConfig], AbstractContextManager[Client]]


def opener_of(ctx: typer.Context) -> OpenEngine:
    """What opens this run's engine: `ctx.obj` if given, else `open_engine`. Pure."""
    return ctx.obj if ctx.obj is not None else open_engine


@contextmanager
def open_engine(config: EngineConfig) -> Iterator[Client]:
    """An engine in this process, closed after the block. Cost: loads torch and the model."""
    with console.waiting(f"loading {config.model}"):
        from mmserve.engine import Engine  # noqa: PLC0415 - `mmserve --help` must not load torch

        engine = Engine.from_config(config)
    with engine:
        yield engine


@contextmanager
def open_supervised(
    config: EngineConfig, *, open_s: float, stuck_s: float
) -> Iterator[Supervisor]:
    """An engine in a process of its own, which ends with the block; loads no torch here."""
    from mmserve.engine.remote import (  # noqa: PLC0415 - the other commands need no processes
        Supervision,
        Supervisor,
    )

    silence_s = min(stuck_s, Supervision().silence_s)
    ways = Supervision(
        open_s=open_s, stuck_s=stuck_s, silence_s=silence_s, beat_s=min(1.0, silence_s / 4)
    )
    supervisor = Supervisor(config, ways)
    with console.waiting(f"loading {config.model}"):
        supervisor.start()
    try:
        yield supervisor
    finally:
        supervisor.close()
