"""One test in a process of its own, what came of it, and the table of all."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.table import Table
from rich.text import Text

from compat.checks import Check

__all__ = [
    "Outcome",
    "Result",
    "has_passed",
    "last_line",
    "run_check",
    "summary_of",
    "table_of",
]

Result = Literal["pass", "fail", "timeout", "skipped"]
_ERROR = re.compile(r"[\w.]*(Error|Exception|Exit)\b")
_MAX_SHOWN = 200
_COLOURS = {"pass": "green", "fail": "red", "timeout": "red", "skipped": "yellow"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one test.

    `error` is the last line of what it said. `skipped` is a test that cannot be run here or on
    this model; `error` says why.
    """

    check: Check
    result: Result
    seconds: float = 0.0
    error: str = ""

    def row(self) -> dict[str, Any]:
        """As it is recorded. Pure."""
        return {
            "client": self.check.client,
            "test": self.check.name,
            "model": self.check.model,
            "needs_knowledge": self.check.needs_knowledge,
            "result": self.result,
            "seconds": round(self.seconds, 1),
            "error": self.error,
        }


def run_check(check: Check, python: Path, folder: Path, url: str) -> Outcome:
    """Run `check` with `python` in `folder` against the server at `url`.

    The process and all its children are killed at the limit: the client hangs after errors.
    What it prints is kept in `folder`, in a file named after the test.
    """
    options = json.dumps(dict(check.options))
    words = [str(python), f"{check.client}.py", url, check.name, options]
    log = folder / f"{check.client}.{check.name}.log"
    start_s = time.monotonic()
    with log.open("w") as file:
        process = subprocess.Popen(
            words, cwd=folder, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status: int | None = process.wait(check.limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    seconds = time.monotonic() - start_s
    if status == 0:
        return Outcome(check=check, result="pass", seconds=seconds)
    result: Result = "timeout" if status is None else "fail"
    said = last_line(log.read_text(errors="replace"))
    return Outcome(check=check, result=result, seconds=seconds, error=said)


def last_line(text: str) -> str:
    """The last line that names an error, else the last that says something; cut. Pure."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if _ERROR.match(line)]
    return (named or lines or [""])[-1][:_MAX_SHOWN]


def has_passed(outcomes: Sequence[Outcome]) -> bool:
    """Of the tests that need no knowledge, all that could be run have passed. Pure."""
    wanted = [one for one in outcomes if not one.check.needs_knowledge]
    return all(one.result in ("pass", "skipped") for one in wanted)


def summary_of(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Counts by need and result. Pure."""
    ran = [one for one in outcomes if one.result != "skipped"]
    summary: dict[str, float] = {}
    for need, is_needed in (("any_model", False), ("good_model", True)):
        group = [one for one in ran if one.check.needs_knowledge is is_needed]
        summary[f"{need}_tests"] = len(group)
        summary[f"{need}_passed"] = sum(one.result == "pass" for one in group)
    summary["skipped"] = len(outcomes) - len(ran)
    return summary


def table_of(outcomes: Sequence[Outcome]) -> Table:
    """The outcomes as a table. Pure."""
    table = Table(
        "client", "test", "model", "knowledge", "result", "s", "last line of the error"
    )
    for one in outcomes:
        table.add_row(
            one.check.client,
            one.check.name.rpartition(".")[2] if one.check.client == "kits" else one.check.name,
            one.check.model,
            "yes" if one.check.needs_knowledge else "no",
            Text(one.result, style=_COLOURS[one.result]),
            f"{one.seconds:.1f}",
            Text(one.error),
        )
    return table
