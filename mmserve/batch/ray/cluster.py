"""The driver's side: a data set of groups, mapped by workers, read as it is answered.

All groups are put into the cluster's object store, which goes to disk where memory is short;
this process holds references to them and the block it reads.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmserve.batch.answering import BatchSettings
from mmserve.batch.elsewhere import PlannedRow
from mmserve.batch.ray.wire import GroupRow, blocks_of, groups_of, record_of
from mmserve.batch.ray.worker import GroupWorker, OpenAsker, WorkerSettings
from mmserve.batch.records import Record
from mmserve.core import Broken, MissingExtra, MmserveError

__all__ = ["Cluster", "RaySettings", "answered_groups"]

_GROUPS_A_BLOCK = 8


def _setting(default: Any, doc: str, low: int | None = None) -> Any:  # noqa: ANN401
    return field(default=default, metadata={"doc": doc, "low": low})


@dataclass(frozen=True, slots=True, kw_only=True)
class RaySettings:
    """Whether a job goes over a Ray cluster, and over how much of it."""

    ray: bool = _setting(default=False, doc="answer on a Ray cluster, an engine a worker")
    ray_address: str | None = _setting(
        None, "cluster to join, as ray://host:10001 or auto; default: one on this machine"
    )
    ray_workers: int | None = _setting(
        None, "most workers; default: one a GPU, without GPUs one", 1
    )
    ray_cpus: int = _setting(1, "processors that a worker without a GPU takes", 1)


class Cluster:
    """Answers the rows of a plan on a Ray cluster; see `answered_groups`."""

    def __init__(
        self, open_asker: OpenAsker, batch: BatchSettings, settings: RaySettings
    ) -> None:
        _ray()  # before a run begins, not in the middle of it
        self._open_asker = open_asker
        self._batch = batch
        self._settings = settings

    def answered(self, planned: Iterable[PlannedRow]) -> Iterator[Sequence[Record]]:
        """The records of each group, as they come. Raises what `answered_groups` raises."""
        groups = groups_of(planned)
        for _, records in answered_groups(
            groups, self._open_asker, self._batch, self._settings
        ):
            yield records


def answered_groups(
    groups: Iterable[tuple[int, Sequence[GroupRow]]],
    open_asker: OpenAsker,
    batch: BatchSettings,
    settings: RaySettings,
) -> Iterator[tuple[int, list[Record]]]:
    """The records of each group, as they are answered; every group once.

    Args:
        groups: by number; rows about the same media, in the order they are asked.
        open_asker: opens a worker's engine.
        batch: how a worker runs its groups.
        settings: see there.

    A worker that dies is replaced and what it had is done again. Whoever breaks off keeps what
    was read. Raises MissingExtra without Ray, Broken if the cluster or a run there fails.
    """
    ray = _ray()
    work = WorkerSettings(open_asker=open_asker, batch=batch, folder=str(Path.cwd()))
    seen: set[int] = set()
    with _cluster(ray, settings.ray_address), _failures(ray):
        answered = _data_set(ray, groups).map_batches(
            GroupWorker,
            fn_constructor_args=(work,),
            batch_size=None,
            batch_format="pyarrow",
            **_resources(ray, settings),
        )
        for table in answered.iter_batches(batch_size=None, batch_format="pyarrow"):
            for item in table.to_pylist():
                if item["group"] not in seen:
                    seen.add(item["group"])
                    yield item["group"], [record_of(record) for record in item["records"]]


def _ray() -> Any:  # noqa: ANN401 - an optional package
    try:
        importlib.import_module("ray.data")
        return importlib.import_module("ray")
    except ImportError as error:
        raise MissingExtra(
            f"--ray needs the package ray: {error}",
            hint='pip install "mmserve[ray]"',
            package="ray",
            extra="ray",
        ) from None


@contextmanager
def _cluster(ray: Any, address: str | None) -> Iterator[None]:  # noqa: ANN401
    """A cluster for the block: the one that is joined already, else as `address` says."""
    if ray.is_initialized():
        yield
        return
    own: dict[str, Any] = {"include_dashboard": False} if address is None else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **own)
    except (ConnectionError, ValueError, RuntimeError) as error:
        message = f"cannot join the Ray cluster {address or 'on this machine'}: {error}"
        hint = "--ray-address names a cluster that runs; without it one is started here"
        raise Broken(message, hint=hint) from error
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _failures(ray: Any) -> Iterator[None]:  # noqa: ANN401
    """Tell what ended the work there as an error of ours."""
    try:
        yield
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        reason = cause if isinstance(cause, MmserveError) else error
        message = f"a worker of the Ray cluster failed: {str(reason)[:1000]}"
        raise Broken(message, hint="--resume goes on with what has no record") from error


def _data_set(
    ray: Any,  # noqa: ANN401
    groups: Iterable[tuple[int, Sequence[GroupRow]]],
) -> Any:  # noqa: ANN401
    arrow = importlib.import_module("pyarrow")
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    blocks = blocks_of(groups, _GROUPS_A_BLOCK)
    return ray.data.from_arrow_refs(
        [ray.put(arrow.Table.from_pylist(block)) for block in blocks]
    )


def _resources(ray: Any, settings: RaySettings) -> dict[str, Any]:  # noqa: ANN401
    """What each worker takes, and how many there may be. Pure."""
    num_gpus = int(ray.cluster_resources().get("GPU", 0))
    most = settings.ray_workers or num_gpus or 1
    own = {"num_gpus": 1} if num_gpus else {"num_cpus": settings.ray_cpus}
    return {**own, "compute": ray.data.ActorPoolStrategy(min_size=1, max_size=most)}
