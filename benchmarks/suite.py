"""Every benchmark in turn, in one order and on one machine, and a page of what they found.

    ceilings, image_qa, ..., memory, ...      one process after the other, never two at once
        FOLDER/NAME.json                      the record of each
        FOLDER/suite.json                     which ran, how long, and why one did not
        FOLDER/report.html                    targets, plots, rows; see `report_page`

A benchmark that fails or takes too long is told of and the next one runs. A quick run writes to
a folder of its own, so that it never stands in for results.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.record import Record
from benchmarks.report_page import SUITE, write_page
from benchmarks.report_sections import SECTIONS

__all__ = ["NAMES", "Outcome", "SuiteRecord", "run_one", "run_suite"]

NAMES = tuple(section.name for section in SECTIONS)
"""Benchmarks in the order in which they run."""

_ROOT = Path(__file__).parents[1]
RESULTS = _ROOT / "benchmarks" / "results"
QUICK_RESULTS = _ROOT / ".bench" / "quick"
_FULL_LIMIT_S, _QUICK_LIMIT_S = 3 * 3600.0, 600.0
_GRACE_S = 20.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one benchmark.

    Args:
        benchmark: its name.
        status: "done", "failed", "too long" or "not there".
        seconds: that it ran.
        load_before: the machine's load as it began; above 0 its ratios are doubtful.
        reason: the last line that it said, unless it is done.
    """

    benchmark: str
    status: str
    seconds: float = 0.0
    load_before: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteRecord(Record):
    """A record of the run itself: a row for each benchmark, and when it began (UTC)."""

    begun: str
    is_quick: bool


def run_one(name: str, folder: Path, *, is_quick: bool, limit_s: float) -> Outcome:
    """Run one benchmark in a process of its own. Changes: FOLDER/NAME.json and its log.

    A record of an earlier run stays if this one fails.
    """
    module = f"benchmarks.{name}"
    if importlib.util.find_spec(module) is None:
        return Outcome(name, "not there", reason=f"no module {module}")
    record, log = folder / f"{name}.json", folder / f"{name}.log"
    unfinished = folder / f"{name}.json.unfinished"
    words = [sys.executable, "-m", module, "--json", str(unfinished)]
    words += ["--quick"] if is_quick else []
    load, began = os.getloadavg()[0], time.monotonic()
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            words, cwd=_ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        status = _wait(process, limit_s)
    seconds = round(time.monotonic() - began, 1)
    if status == "done" and unfinished.is_file():
        _named_for_good(unfinished, record)
        return Outcome(name, status, seconds, round(load, 2))
    unfinished.unlink(missing_ok=True)
    status = "failed" if status == "done" else status
    return Outcome(name, status, seconds, round(load, 2), _last_line(log))


def _wait(process: subprocess.Popen[bytes], limit_s: float) -> str:
    """How a process ends; whatever it started ends with it."""
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        _end(process, signal.SIGTERM)
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            _end(process, signal.SIGKILL)
            process.wait()
        return "too long"
    except BaseException:
        _end(process, signal.SIGTERM)
        raise
    return "done" if code == 0 else "failed"


def _end(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def _named_for_good(unfinished: Path, record: Path) -> None:
    """Move a record to its name, which its command then tells, too."""
    value = json.loads(unfinished.read_text(encoding="utf-8"))
    place = record.relative_to(_ROOT) if record.is_relative_to(_ROOT) else record
    value["command"] = value["command"].replace(str(unfinished), str(place))
    record.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    unfinished.unlink()


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1].strip()[:300] if lines else "it said nothing"


def _all(*, is_quick: bool) -> list[str]:
    """All benchmarks, or those that have a small run. Pure."""
    return [section.name for section in SECTIONS if section.has_quick or not is_quick]


def run_suite(
    names: Sequence[str], folder: Path, *, is_quick: bool, limit_s: float
) -> SuiteRecord:
    """Run benchmarks one after the other; the page is written after each. Changes: FOLDER."""
    folder.mkdir(parents=True, exist_ok=True)
    begun = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    outcomes: list[Outcome] = []
    for name in names:
        outcome = run_one(name, folder, is_quick=is_quick, limit_s=limit_s)
        outcomes.append(outcome)
        told = f", {outcome.reason}" if outcome.reason else ""
        print(f"{name}: {outcome.status} after {outcome.seconds:.0f} s{told}", flush=True)
        record = _record(outcomes, begun, is_quick=is_quick)
        text = json.dumps(asdict(record), indent=2) + "\n"
        (folder / f"{SUITE}.json").write_text(text, encoding="utf-8")
        write_page(folder)
    return record


def _record(outcomes: Sequence[Outcome], begun: str, *, is_quick: bool) -> SuiteRecord:
    rows: list[dict[str, Any]] = [asdict(outcome) for outcome in outcomes]
    done = sum(outcome.status == "done" for outcome in outcomes)
    return SuiteRecord(
        repeats=1,
        summary={
            "done": done,
            "without_result": len(outcomes) - done,
            "seconds": sum(outcome.seconds for outcome in outcomes),
        },
        rows=rows,
        begun=begun,
        is_quick=is_quick,
    )


def main() -> None:
    """Parse flags, run, name the page; exit 1 if a benchmark gave no record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small run of each")
    parser.add_argument("--only", nargs="+", choices=NAMES, metavar="NAME", help="not all")
    parser.add_argument("--folder", type=Path, help="where records and the page go")
    parser.add_argument("--limit-s", type=float, help="most seconds of one benchmark")
    flags = parser.parse_args()
    folder = flags.folder or (QUICK_RESULTS if flags.quick else RESULTS)
    limit_s = flags.limit_s or (_QUICK_LIMIT_S if flags.quick else _FULL_LIMIT_S)
    names = flags.only or _all(is_quick=flags.quick)
    record = run_suite(names, folder.absolute(), is_quick=flags.quick, limit_s=limit_s)
    print(folder / "report.html")
    sys.exit(bool(record.summary["without_result"]))


if __name__ == "__main__":
    main()
