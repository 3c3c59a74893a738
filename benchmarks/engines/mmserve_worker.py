"""Worker of mmserve itself: the engine in this process, no server between.

Options are fields of `EngineConfig`, for example {"weights": "int8"}; those of its scheduler
and of its media plane stand under "sched" and "media".
"""

from __future__ import annotations

import importlib.metadata
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.engines.serve_loop import Command, answer_of, serve
from mmserve.core import (
    EngineConfig,
    ImagePart,
    MediaConfig,
    Part,
    PathSource,
    RawPart,
    Request,
    SamplingParams,
    SchedConfig,
    TokensPart,
    VideoPart,
)
from mmserve.engine import Engine, EngineTicket

_FLUSH_S = 60.0


class Mmserve:
    """See `serve_loop.Engine`."""

    def __init__(self) -> None:
        self._engine: Engine | None = None

    def load(self, model: Path, threads: int, options: Mapping[str, Any]) -> str:
        """See `serve_loop.Engine`."""
        fields = dict(options)
        fields["sched"] = SchedConfig(**fields.get("sched", {}))
        fields["media"] = MediaConfig(**fields.get("media", {}))
        config = EngineConfig(model=str(model), threads=threads, **fields)
        self._engine = Engine.from_config(config)
        return importlib.metadata.version("mmserve")

    def run(self, jobs: Sequence[Mapping[str, Any]], *, at_once: bool) -> list[dict[str, Any]]:
        """See `serve_loop.Engine`."""
        engine = self._opened()
        if not at_once:
            return [_Reading(job, engine).answer() for job in jobs]
        start = time.perf_counter()
        readings = [_Reading(job, engine, start) for job in jobs]
        return [reading.answer() for reading in readings]

    def forget(self) -> None:
        """See `serve_loop.Engine`."""
        if not self._opened().flush_cache(timeout_s=_FLUSH_S):
            message = f"answers were still running after {_FLUSH_S:g} s"
            raise TimeoutError(message)

    def close(self) -> None:
        """See `serve_loop.Engine`."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def server(self, model: Path, threads: int, options: Mapping[str, Any]) -> Command:
        """See `serve_loop.Engine`; options become flags."""
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        words = [sys.executable, "-m", "mmserve", "serve", "--model", str(model)]
        words += ["--port", "{port}", f"--threads={threads}", *flags]
        return Command(words, ready="/health")

    def _opened(self) -> Engine:
        if self._engine is None:
            message = "load a model first"
            raise ValueError(message)
        return self._engine


class _Reading:
    """One job handed over, and a thread that notes when its tokens come."""

    def __init__(
        self, job: Mapping[str, Any], engine: Engine, start: float | None = None
    ) -> None:
        self._job = job
        self._start = time.perf_counter() if start is None else start
        self._first_token_s: float | None = None
        self._token_ids: list[int] = []
        self._text = ""
        self._num_prompt_tokens = 0
        self._error: Exception | None = None
        sampling = SamplingParams(
            max_new_tokens=job["max_tokens"], temperature=0.0, ignore_eos=True
        )
        request = Request(request_id=job["id"], parts=_parts(job), sampling=sampling)
        self._thread = threading.Thread(target=self._read, args=(engine.submit(request),))
        self._thread.start()

    def _read(self, ticket: EngineTicket) -> None:
        try:
            for output in ticket.outputs():
                if output.token_ids and self._first_token_s is None:
                    self._first_token_s = time.perf_counter() - self._start
                if output.finish is not None and output.finish.error is not None:
                    raise output.finish.error
                self._token_ids += output.token_ids
                self._text += output.text
                self._num_prompt_tokens = output.usage.prompt_tokens
        except Exception as error:  # noqa: BLE001  told by `answer`, in the caller's thread
            self._error = error

    def answer(self) -> dict[str, Any]:
        """Wait for the end. Raises what the request ended with."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return answer_of(
            self._job,
            self._token_ids,
            self._text,
            first_token_s=self._first_token_s,
            num_prompt_tokens=self._num_prompt_tokens,
        )


def _parts(job: Mapping[str, Any]) -> tuple[Part, ...]:
    parts: list[Part] = []
    if job["image"] is not None:
        parts.append(ImagePart(PathSource(job["image"])))
    if job["video"] is not None:
        parts.append(VideoPart(PathSource(job["video"]), num_frames=job["num_frames"]))
    ids = job["token_ids"]
    parts.append(RawPart(job["text"]) if ids is None else TokensPart(tuple(ids)))
    return tuple(parts)


if __name__ == "__main__":
    serve(Mmserve())
