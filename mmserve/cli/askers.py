"""Who answers a batch: an engine in this process, or servers; and what they may read."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import typer

from mmserve.batch import (
    Asker,
    BatchSettings,
    Elsewhere,
    Fleet,
    ServerCount,
    Spool,
    StoreSettings,
    server_urls,
)
from mmserve.batch.looking import Renderer, ServerRenderer
from mmserve.batch.ray import Cluster, RaySettings
from mmserve.cli import console
from mmserve.cli.batch_progress import ServerNews, news_of
from mmserve.cli.engines import open_engine, opener_of
from mmserve.core import BadRequest, EngineConfig

__all__ = [
    "AskerFlags",
    "Opened",
    "check_askers",
    "open_asker",
    "open_cluster",
    "open_worker",
    "server_lines",
]


def _flag(default: Any, doc: str) -> Any:  # noqa: ANN401
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True, slots=True, kw_only=True)
class AskerFlags:
    """Who answers, and from where media may come."""

    url: tuple[str, ...] = _flag((), "server to ask, in place of an engine here; repeatable")
    api_key: str | None = _flag(None, "key for the servers")


@dataclass(frozen=True, slots=True)
class Opened:
    """Who answers a run.

    Args:
        asker: of questions, or of whole groups.
        renderer: who shows prompts; None if nobody can.
        servers: tells what each of several servers did.
    """

    asker: Asker | Elsewhere
    renderer: Renderer | None = None
    servers: ServerNews | None = None


def check_askers(flags: AskerFlags, config: EngineConfig, cluster: RaySettings) -> None:
    """Raise BadRequest for flags that contradict each other. Pure."""
    if flags.url and cluster.ray:
        message = "--url and --ray are both given"
        raise BadRequest(message, field="url", reason="several", hint="give one of them")
    if flags.api_key is not None and not flags.url:
        message = "--api-key is given, and no --url to send it to"
        raise BadRequest(message, field="api_key", reason="unused", hint="add --url")
    if not cluster.ray and replace(cluster, ray=True) != RaySettings(ray=True):
        message = "a flag of --ray is given, and --ray is not"
        raise BadRequest(message, field="ray", reason="missing", hint="add --ray")
    if flags.url and config != EngineConfig():
        message = "--url is given, and flags of an engine"
        raise BadRequest(message, field="url", reason="several", hint="give them to the server")


@contextmanager
def open_asker(
    ctx: typer.Context,
    flags: AskerFlags,
    config: EngineConfig,
    stores: StoreSettings,
    *,
    concurrency: int,
    is_quiet: bool,
) -> Iterator[Opened]:
    """An engine or a fleet, closed after the block; then it is told what each server did."""
    with ExitStack() as stack:
        asker: Asker
        if flags.url:
            asker = stack.enter_context(_open_fleet(flags, concurrency, is_quiet=is_quiet))
        else:
            asker = stack.enter_context(opener_of(ctx)(config))
        limit_bytes = config.media.max_media_bytes
        spool = stack.enter_context(
            Spool(asker, stores, max_media_bytes=limit_bytes, concurrency=concurrency)
        )
        renderer: Renderer = spool
        if flags.url:
            first = server_urls(flags.url)[0]
            renderer = stack.enter_context(ServerRenderer(first, flags.api_key))
        yield Opened(spool, renderer, news_of(asker))


@contextmanager
def open_cluster(
    config: EngineConfig, stores: StoreSettings, batch: BatchSettings, settings: RaySettings
) -> Iterator[Opened]:
    """A Ray cluster whose workers have an engine each."""
    opener = functools.partial(open_worker, config, stores, batch.concurrency)
    yield Opened(Cluster(opener, batch, settings))


@contextmanager
def open_worker(
    config: EngineConfig, stores: StoreSettings, concurrency: int
) -> Iterator[Asker]:
    """What a worker of a cluster asks; found there by its name."""
    limit_bytes = config.media.max_media_bytes
    with (
        open_engine(config) as client,
        Spool(client, stores, max_media_bytes=limit_bytes, concurrency=concurrency) as spool,
    ):
        yield spool


@contextmanager
def _open_fleet(flags: AskerFlags, concurrency: int, *, is_quiet: bool) -> Iterator[Fleet]:
    with Fleet(
        flags.url, flags.api_key, concurrency=concurrency, on_change=console.note
    ) as fleet:
        yield fleet
        counts = fleet.counts()
    if len(counts) > 1 and not is_quiet:
        for line in server_lines(counts):
            console.note(line)


def server_lines(counts: Sequence[ServerCount]) -> list[str]:
    """What each server did, a line each. Pure."""
    return [_line(count) for count in counts]


def _line(count: ServerCount) -> str:
    words = [f"{count.answered:,} answered"]
    if count.refused:
        words.append(f"{count.refused:,} refused")
    if count.uploads:
        words.append(f"{count.uploads:,} files uploaded ({count.uploaded_bytes:,} bytes)")
    if count.losses:
        words.append(f"lost {count.losses:,} times, {count.moved:,} questions asked elsewhere")
    if not count.is_up:
        words.append("out at the end")
    return f"  {count.url}: {', '.join(words)}"
