"""`mmserve serve`: the HTTP server."""

from __future__ import annotations

import gc
from typing import Annotated

import typer

from mmserve.cli import console
from mmserve.cli.engines import opener_of
from mmserve.cli.flags import SERVER, Settings, with_settings
from mmserve.core import ServerConfig

__all__ = ["serve"]


@with_settings(SERVER)
def serve(
    ctx: typer.Context,
    *,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="tell which kernels compute, and why not others")
    ] = False,
    settings: Settings,
) -> None:
    """Serve a model over HTTP until interrupted.

    OpenAI's and the native routes; /health says whether it is ready.
    """
    from mmserve import server  # noqa: PLC0415 - the other commands need no HTTP

    with opener_of(ctx)(settings.engine()) as client:
        name = client.model.name
        for line in client.model.kernels if verbose else ():
            console.note(line)
        gc.collect()
        gc.freeze()  # else a full collection walks all of torch amid a stream: 30 to 165 ms
        server.serve(
            client,
            settings.of(ServerConfig),
            on_ready=lambda url: console.note(f"{name} on {url}, Ctrl-C ends it"),
        )
