"""A worker of a cluster: one engine, which answers some groups at a time as any run does."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmserve.batch.answering import BatchSettings
from mmserve.batch.asker import Asker
from mmserve.batch.output import OutputMode
from mmserve.batch.ray.wire import GroupRow, numbered_content, record_at
from mmserve.batch.runner import answer_file

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["GroupWorker", "OpenAsker", "WorkerSettings", "answer_groups"]

OpenAsker = Callable[[], AbstractContextManager[Asker]]
"""Opens a worker's engine; goes over the wire, so it is no lambda."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What a worker needs to know.

    Args:
        open_asker: see there.
        batch: how to run; its mode does not count.
        folder: the driver's working folder, where relative paths of rows begin.
    """

    open_asker: OpenAsker
    batch: BatchSettings
    folder: str


class GroupWorker:
    """What Ray makes an actor of. Cost: loads the engine; it ends with the actor's process."""

    def __init__(self, settings: WorkerSettings) -> None:
        with contextlib.suppress(OSError):  # a node without it has none of its files either
            os.chdir(settings.folder)
        self._settings = settings
        self._stack = contextlib.ExitStack()
        self._client = self._stack.enter_context(settings.open_asker())

    def __call__(self, table: pa.Table) -> pa.Table:
        """The records of a block of groups. Raises what ends a run."""
        groups = table.to_pylist()
        answered = answer_groups(self._client, groups, self._settings.batch)
        return type(table).from_pylist(answered)


def answer_groups(
    client: Asker, groups: Sequence[dict[str, Any]], settings: BatchSettings
) -> list[dict[str, Any]]:
    """The records of groups as they go over the wire, answered by a run of their own.

    All rows are one file, so that several groups are under way at once, and what holds for a
    run here holds there: order, retries, conversations.
    """
    places: list[tuple[int, int]] = []  # group and line of each line of the file
    with tempfile.TemporaryDirectory(prefix="mmserve-groups-") as folder:
        source, target = Path(folder, "rows.jsonl"), Path(folder, "records.jsonl")
        with source.open("wb") as file:
            for number, group in enumerate(groups):
                for row in group["rows"]:
                    file.write(numbered_content(GroupRow(**row)) + b"\n")
                    places.append((number, row["line"]))
        answer_file(client, source, target, _own(settings))
        records: list[list[bytes]] = [[] for _ in groups]
        with target.open("rb") as file:
            for record in file:
                number, line = places[json.loads(record)["line"] - 1]
                records[number].append(record_at(record, line))
    return [
        {"group": group["group"], "records": own}
        for group, own in zip(groups, records, strict=True)
    ]


def _own(settings: BatchSettings) -> BatchSettings:
    """How a worker runs: rows come as JSON lines, and the driver says when to stop. Pure."""
    rows = replace(settings.rows, format=None)
    return replace(settings, rows=rows, mode=OutputMode.NEW, max_errors=None)
