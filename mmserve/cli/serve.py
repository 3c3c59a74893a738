"""`mmserve serve`: the HTTP server."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from typing import Annotated

import typer

from mmserve.cli import console
from mmserve.cli.engines import open_supervised, opener_of
from mmserve.cli.flags import SERVER, Settings, with_settings
from mmserve.core import Client, ServerConfig

__all__ = ["serve"]


@with_settings(SERVER)
def serve(
    ctx: typer.Context,
    *,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="tell which kernels compute, and why not others")
    ] = False,
    in_process: Annotated[
        bool,
        typer.Option("--in-process", help="run the engine in a thread of the server's process"),
    ] = False,
    settings: Settings,
) -> None:
    """Serve a model over HTTP until interrupted.

    OpenAI's and the native routes; /health says whether it is ready. The engine runs in a
    process of its own, and another is started if it dies or hangs. A signal lets running
    requests end, a second one does not.
    """
    config = settings.of(ServerConfig)
    if in_process or ctx.obj is not None or os.name != "posix":
        with opener_of(ctx)(settings.engine()) as client:
            _serve(client, config, is_verbose=verbose)
        return
    with open_supervised(
        settings.engine(), open_s=config.engine_open_s, stuck_s=config.engine_stuck_s
    ) as supervisor:
        _serve(
            supervisor.client,
            config,
            is_verbose=verbose,
            is_over=lambda: supervisor.failure is not None,
            on_forced=lambda: supervisor.close(0.0),
        )
        if supervisor.failure is not None:
            raise supervisor.failure


def _serve(
    client: Client,
    config: ServerConfig,
    *,
    is_verbose: bool,
    is_over: Callable[[], bool] | None = None,
    on_forced: Callable[[], None] | None = None,
) -> None:
    from mmserve import server  # noqa: PLC0415 - the other commands need no HTTP

    name = client.model.name
    for line in client.model.kernels if is_verbose else ():
        console.note(line)
    gc.collect()
    gc.freeze()  # else a full collection walks all of torch amid a stream: 30 to 165 ms
    server.serve(
        client,
        config,
        on_ready=lambda url: console.note(f"{name} on {url}, Ctrl-C ends it"),
        is_over=is_over,
        on_forced=on_forced,
    )
