"""How commands get an engine: through the context, so that a test can give another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import typer

from mmserve.cli import console
from mmserve.core import Client, EngineConfig

__all__ = ["OpenEngine", "open_engine", "opener_of"]

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
