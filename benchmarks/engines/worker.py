"""The suite's side of the side-by-side engines: one process each, spoken to in JSON lines.

    request, one line                              reply, one line
    {"do": "load", "model", "threads", "options"}  {"ok": true, "seconds", "version"}
    {"do": "run", "jobs": [JOB], "at_once"}        {"ok": true, "seconds", "answers": [ANSWER]}
    {"do": "forget"}                               {"ok": true}
    {"do": "serve"}                                {"ok": true, "url"}
    {"do": "quit"}                                 {"ok": true}

A request that fails is answered with {"ok": false, "reason"}. JOB and ANSWER are `Job` and
`Answer`. The other side is `benchmarks.engines.serve_loop`.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = [
    "Answer",
    "EngineAbsent",
    "EngineFailed",
    "EngineSpec",
    "Job",
    "Loaded",
    "Ran",
    "Worker",
    "start",
]

ROOT = Path(__file__).parents[2]
"""The checkout; workers run in it, so that they find this package without installing it."""
ENVIRONMENTS = ROOT / ".bench"

_LOAD_S = 900.0
_RUN_S = 3600.0
_FORGET_S = 120.0
_QUIT_S = 30.0
_UNSET = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PYTHONPATH")
_SET = {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "DO_NOT_TRACK": "1",
    "PYTHONUNBUFFERED": "1",
}

_PROBE = (
    "import importlib.util, sys; "
    "missing = [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]; "
    "print(*missing); sys.exit(bool(missing))"
)
"""Says which packages an interpreter lacks; importing them could take a minute."""


class EngineAbsent(RuntimeError):
    """The engine cannot run here; its text is the reason, fit for a report."""


class EngineFailed(RuntimeError):
    """The engine runs here, but did not do what was asked; its text is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """One engine of the suite.

    Args:
        name: as reports call it.
        module: of this package, what its process runs.
        arguments: of that module.
        environment: folder under `.bench`; None for the project's own interpreter.
        can: of "text", "image", "video" (jobs), "at_once" (batches by itself), "serve" (an
            OpenAI surface over HTTP).
        packages: what its environment must have.
        variables: set in its process from the start.
        absent: why it cannot run anywhere here, if so.
    """

    name: str
    module: str
    environment: str | None
    can: frozenset[str]
    arguments: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    absent: str = ""

    def python(self, environments: Path = ENVIRONMENTS) -> Path:
        """The interpreter that runs it. Raises EngineAbsent, with the reason. Pure."""
        if self.absent:
            raise EngineAbsent(self.absent)
        if self.environment is None:
            return Path(sys.executable)
        python = environments / self.environment / "bin" / "python"
        reason = environments / f"{self.environment}.reason"
        if reason.is_file():
            raise EngineAbsent(reason.read_text(encoding="utf-8").strip())
        if not python.is_file():
            message = f"no environment .bench/{self.environment}: `make bench-env` makes it"
            raise EngineAbsent(message)
        return python


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One greedy answer of exactly `max_tokens`; the end token does not end it.

    Args:
        id: comes back with the answer.
        text: what follows the media, free of a chat template; beside a picture it begins with a
            line's end, as OpenVINO writes one in any case.
        token_ids: the same as ids, without a first token of the model's own; engines that take
            ids use them.
        image: a picture in front of the text.
        video: a clip in front of the text, of which `num_frames` are taken uniformly.
        max_tokens: length of the answer.
    """

    id: str
    text: str
    max_tokens: int
    token_ids: Sequence[int] | None = None
    image: str | None = None
    video: str | None = None
    num_frames: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an engine gave for a job.

    `first_token_s` counts from when the job was handed over, with `at_once` from the start of
    the run; None if the engine does not tell. `num_prompt_tokens` counts a picture's tokens
    too; None if the engine does not tell.
    """

    id: str
    token_ids: tuple[int, ...] | None
    text: str
    num_tokens: int
    first_token_s: float | None
    num_prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model was read in so many seconds by an engine of this version."""

    seconds: float
    version: str


@dataclass(frozen=True, slots=True)
class Ran:
    """Jobs were answered in so many seconds, measured in the engine's process."""

    seconds: float
    answers: tuple[Answer, ...]

    @property
    def by_id(self) -> dict[str, Answer]:
        """Answers by their job. Pure."""
        return {answer.id: answer for answer in self.answers}


class Worker:
    """An engine in its own process. Close it, or use it as a context manager.

    Args:
        spec: the engine.
        command: program and arguments of its process.
        log: file that takes whatever the engine prints; it is added to.
    """

    def __init__(self, spec: EngineSpec, command: Sequence[str], log: Path) -> None:
        self.spec = spec
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                text=True,
                start_new_session=True,  # its servers and children end with it
            )
        self._replies: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._listener = threading.Thread(
            target=_listen, args=(self._process, self._replies), daemon=True
        )
        self._listener.start()
        self._is_closed = False

    def load(
        self,
        model: Path,
        *,
        threads: int,
        options: Mapping[str, Any] | None = None,
        limit_s: float = _LOAD_S,
    ) -> Loaded:
        """Read a checkpoint in the engine's own form, see `benchmarks.engines.export`.

        Args:
            model: directory or file.
            threads: threads for tensor work.
            options: of this engine, see its worker; `serve_only` leaves the model to `serve`.
            limit_s: most seconds.

        Raises EngineAbsent if the engine cannot run the model here.
        """
        asked = {"do": "load", "model": str(model), "threads": threads}
        try:
            reply = self._ask(asked | {"options": dict(options or {})}, limit_s)
        except EngineFailed as error:
            raise EngineAbsent(str(error)) from error
        return Loaded(float(reply["seconds"]), str(reply["version"]))

    def run(self, jobs: Sequence[Job], *, at_once: bool, limit_s: float = _RUN_S) -> Ran:
        """Answer jobs: one after the other, or all handed over together.

        Raises EngineFailed if one of them is not answered, or the seconds are over.
        """
        asked = {"do": "run", "jobs": [asdict(job) for job in jobs], "at_once": at_once}
        reply = self._ask(asked, limit_s)
        answers = tuple(_answer(one) for one in reply["answers"])
        if [one.id for one in answers] != [job.id for job in jobs]:
            message = f"{self.spec.name} answered other jobs than it was asked"
            raise EngineFailed(message)
        return Ran(float(reply["seconds"]), answers)

    def forget(self) -> None:
        """Empty every cache of the engine, so that the next run starts cold."""
        self._ask({"do": "forget"}, _FORGET_S)

    def serve(self, *, limit_s: float = _LOAD_S) -> str:
        """Serve the model loaded last over HTTP instead; the address without `/v1`."""
        return str(self._ask({"do": "serve"}, limit_s)["url"])

    def quit(self) -> None:
        """End the process, its server and its children. Idempotent."""
        if self._is_closed:
            return
        with contextlib.suppress(EngineFailed):
            self._ask({"do": "quit"}, _QUIT_S)
            self._process.wait(_QUIT_S)
        self._kill()

    def _ask(self, value: Mapping[str, Any], limit_s: float) -> Mapping[str, Any]:
        if self._is_closed or self._process.stdin is None:
            message = f"{self.spec.name} has ended"
            raise EngineFailed(message)
        try:
            print(json.dumps(value), file=self._process.stdin, flush=True)
            line = self._replies.get(timeout=limit_s)
        except queue.Empty:
            self._kill()
            message = f"{self.spec.name}: {value['do']} took over {limit_s:g} s"
            raise EngineFailed(message) from None
        except OSError:
            line = None
        if line is None:
            self._kill()
            raise EngineFailed(self._end())
        reply: Mapping[str, Any] = json.loads(line)
        if not reply["ok"]:
            message = f"{self.spec.name}: {reply['reason']}"
            raise EngineFailed(message)
        return reply

    def _end(self) -> str:
        """What is known of a process that ended by itself. Pure."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = lines[-1][:300] if lines else "its log is empty"
        return f"{self.spec.name} ended with status {self._process.returncode}: {last}"

    def _kill(self) -> None:
        """End what is left of the process and of all that it started. Idempotent."""
        self._is_closed = True
        process = self._process
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
            deadline = time.monotonic() + 5.0
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._listener.join()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what was never read cannot be flushed
                    pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.quit()


def start(spec: EngineSpec, *, log: Path, environments: Path = ENVIRONMENTS) -> Worker:
    """Start an engine's process, if its environment has what it needs.

    Raises EngineAbsent, with the reason.
    """
    python = spec.python(environments)
    command = ["env", *(word for name in _UNSET for word in ("-u", name))]
    command += [f"{name}={value}" for name, value in {**_SET, **spec.variables}.items()]
    probe = [*command, str(python), "-c", _PROBE, *spec.packages]
    done = subprocess.run(probe, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        missing = done.stdout.strip() or (done.stderr.strip().splitlines() or ["?"])[-1]
        message = f"its environment has no {missing[:300]}"
        raise EngineAbsent(message)
    module = f"benchmarks.engines.{spec.module}"
    return Worker(spec, [*command, str(python), "-m", module, *spec.arguments], log)


def _answer(sent: Mapping[str, Any]) -> Answer:
    ids = sent["token_ids"]
    return Answer(**{**sent, "token_ids": None if ids is None else tuple(ids)})


def _listen(process: subprocess.Popen[str], replies: queue.SimpleQueue[str | None]) -> None:
    """Hand on what the worker says, and None at its end."""
    if process.stdout is not None:
        for line in process.stdout:
            replies.put(line)
    replies.put(None)
