"""Other engines for grammars, in another environment, on the same constraints and answers."""

from __future__ import annotations

import base64
import contextlib
import json
import queue
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.constraint_cases import Case
from benchmarks.constraint_walks import Timed, Tokens, Walk

__all__ = ["OTHERS", "OtherEngine"]

OTHERS = ("xgrammar", "outlines-core")
_SCRIPT = Path(__file__).with_name("constraint_worker.py")
_START_S = 120.0


class OtherEngine:
    """An engine behind a worker process, which is started again after it died or took too long.

    Args:
        python: interpreter of the environment that has it.
        name: of `OTHERS`.
        tokens: the vocabulary.
        limit_s: most seconds for one constraint with its walks.

    Raises:
        RuntimeError: it does not start. Close it, or use it as a context manager.
    """

    def __init__(self, python: str, name: str, tokens: Tokens, limit_s: float) -> None:
        self.name = name
        self._command = [python, str(_SCRIPT), name]
        self._limit_s = limit_s
        self._greeting = {
            "pieces": [base64.b64encode(piece).decode() for piece in tokens.pieces],
            "eos_token_id": tokens.eos_token_id,
        }
        self._worker: subprocess.Popen[str] | None = None
        self._listener: threading.Thread | None = None
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.version = str(self._start()["version"])

    def time_case(self, case: Case, token_ids: Sequence[Sequence[int]]) -> Timed:
        """Compile, and follow some answers for as long as the engine agrees with them."""
        kind = case.constraint.kind
        asked = {"kind": kind, "value": case.constraint.value, "walks": token_ids}
        if self._worker is None:
            self._start()
        found = self._ask(asked, self._limit_s)
        if found is None or "error" in found:
            refusal = f"over {self._limit_s:g} s" if found is None else str(found["error"])
            return Timed(case.name, kind, refusal=refusal)
        walks = [_walk_of(*pair) for pair in zip(found["walks"], token_ids, strict=True)]
        times = {name: found[name] for name in ("compile_ms", "processor_ms", "first_mask_ms")}
        return Timed(case.name, kind, walks=walks, **times)

    def _start(self) -> Mapping[str, Any]:
        worker = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._worker, self._answers = worker, queue.SimpleQueue()
        self._listener = threading.Thread(target=_listen, args=(worker, self._answers))
        self._listener.start()
        answer = self._ask(self._greeting, _START_S)
        if answer is None:
            message = f"{self.name} does not start with {self._command[0]}"
            raise RuntimeError(message)
        return answer

    def _ask(self, value: Mapping[str, Any], limit_s: float) -> Mapping[str, Any] | None:
        """The worker's answer; None, and the worker is gone, if there is none in time."""
        worker = self._worker
        if worker is None or worker.stdin is None:
            return None
        line = None
        try:
            print(json.dumps(value), file=worker.stdin, flush=True)
            line = self._answers.get(timeout=limit_s)
        except (OSError, queue.Empty):
            pass
        if line is None:
            self.close()
            return None
        answer: Mapping[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the worker. Idempotent."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        worker.kill()
        worker.wait()
        if self._listener is not None:
            self._listener.join()
        for pipe in (worker.stdin, worker.stdout):
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
        self.close()


def _listen(worker: subprocess.Popen[str], answers: queue.SimpleQueue[str | None]) -> None:
    """Hand on what the worker prints, and None at its end."""
    if worker.stdout is not None:
        for line in worker.stdout:
            answers.put(line)
    answers.put(None)


def _walk_of(told: Mapping[str, list[float]], token_ids: Sequence[int]) -> Walk:
    num_taken = len(told["mask_us"])
    return Walk(
        token_ids=list(token_ids[:num_taken]),
        mask_us=told["mask_us"],
        accept_us=told["accept_us"],
        is_stuck=num_taken < len(token_ids),
    )
