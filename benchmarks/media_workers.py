"""Other engines as lanes over pictures and clips, each a worker in its own environment."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from transformers import AutoTokenizer

from benchmarks.elsewhere import Watch
from benchmarks.engines import ENGINES, EngineAbsent, EngineFailed, Job, Worker, open_worker
from benchmarks.engines.export import export
from benchmarks.engines.worker import ENVIRONMENTS
from benchmarks.media_asks import Ask, Picture, Program
from benchmarks.media_lanes import Done, Lane
from mmserve.core import default_threads

__all__ = ["WorkerLane", "open_others"]

_OURS = ("mmserve", "transformers")
"""These begin the names of engines that have lanes of their own."""
_LEAST_FREE_BYTES = 4 << 30
"""An engine is left out if it would leave others less memory."""


class WorkerLane:
    """An engine that gets all questions together, or one after the other if it likes it so.

    Args:
        worker: with the model loaded.
        tokenizer: gives engines that take text what the token ids say.
        folder: takes media as files.
        at_once: whether it batches by itself.
    """

    most_programs: int | None = None

    def __init__(
        self,
        worker: Worker,
        tokenizer: Any,  # noqa: ANN401  of transformers
        folder: Path,
        *,
        at_once: bool,
    ) -> None:
        self.name = worker.spec.name
        self._worker, self._tokenizer = worker, tokenizer
        self._folder, self._at_once = folder, at_once
        self._paths: dict[bytes, Path] = {}

    def run(self, programs: Sequence[Program]) -> Done:
        """See `Lane`; programs of one step only. Changes: writes media files before it begins.

        Raises EngineFailed.
        """
        jobs = [self._job(ask) for program in programs for ask in program.next_asks({})]
        self._worker.forget()
        watch, start = Watch.start(), time.perf_counter()
        ran = self._worker.run(jobs, at_once=self._at_once)
        seconds = time.perf_counter() - start
        answers = {one.id: one.token_ids for one in ran.answers if one.token_ids is not None}
        return Done(seconds, answers, watch.elsewhere_cores())

    def _job(self, ask: Ask) -> Job:
        """A question behind one picture or clip. Raises ValueError for another prompt."""
        media, token_ids = ask.items
        if isinstance(media, tuple) or not isinstance(token_ids, tuple):
            message = f"{ask.ask_id} is more than a question behind one picture or clip"
            raise ValueError(message)  # noqa: TRY004  the prompt is wrong, not its type
        path, is_picture = str(self._path(media.content)), isinstance(media, Picture)
        return Job(
            id=ask.ask_id,
            text=self._tokenizer.decode(token_ids),
            token_ids=token_ids,
            max_tokens=ask.num_answer,
            image=path if is_picture else None,
            video=None if is_picture else path,
            num_frames=None if isinstance(media, Picture) else media.num_frames,
        )

    def _path(self, content: bytes) -> Path:
        if content not in self._paths:
            suffix = ".png" if content.startswith(b"\x89PNG") else ".mp4"
            self._paths[content] = self._folder / f"{len(self._paths)}{suffix}"
            self._paths[content].write_bytes(content)
        return self._paths[content]


def open_others(
    directory: Path, kind: Literal["image", "video"], stack: ExitStack
) -> tuple[list[Lane], list[dict[str, Any]]]:
    """Lanes of all that run here, and a row with the reason of each that does not.

    Args:
        directory: a checkpoint; exports are written beside it and kept.
        kind: of media that they must take.
        stack: closes them.
    """
    tokenizer = AutoTokenizer.from_pretrained(directory)
    media = Path(stack.enter_context(TemporaryDirectory()))
    lanes: list[Lane] = []
    absent: list[dict[str, Any]] = []
    for spec in ENGINES:
        if spec.name.startswith(_OURS):
            continue
        try:
            if kind not in spec.can:
                message = f"it is not given a {kind}"
                raise EngineAbsent(message)
            worker = _loaded(spec.name, directory, stack)
        except (EngineAbsent, EngineFailed) as error:
            absent.append({"engine": spec.name, "not_run": str(error)})
            print(f"{spec.name} is absent: {error}", file=sys.stderr)
            continue
        lanes.append(WorkerLane(worker, tokenizer, media, at_once="at_once" in spec.can))
    return lanes, absent


def _loaded(name: str, directory: Path, stack: ExitStack) -> Worker:
    """A worker with the model. Raises EngineAbsent."""
    log = ENVIRONMENTS / "logs" / f"media, {name}.log"
    with ExitStack() as opening:
        worker = opening.enter_context(open_worker(name, log=log))
        if _free_bytes() < _LEAST_FREE_BYTES:
            message = "there is too little memory beside the other engines"
            raise EngineAbsent(message)
        model = export(name, str(directory), directory.parent)
        worker.load(model, threads=default_threads())
        stack.push(opening.pop_all())
    return worker


def _free_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    found = next(line for line in lines if line.startswith("MemAvailable"))
    return int(found.split()[1]) * 1024
