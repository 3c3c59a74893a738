"""Runs the outside clients of the native wire format against `mmserve serve`.

    python -m compat.sglang_clients [--work DIR] [--model NAME] [--only NAME] [--json FILE]

client      its environment                         the server
test   ->   one process each, with a limit   ->     one for each model, on a free port

The exit status is 0 if every test that needs no model's knowledge passes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from benchmarks.record import Record
from compat.checks import CHECKS, CLIENTS, SMOLLM2, TABLETOP, Check
from compat.environments import Workplace, prepare
from compat.outcomes import Outcome, Result, has_passed, run_check, summary_of, table_of
from compat.serving import NotServed, serving

__all__ = ["chosen", "main", "run_all"]

_TABLE_WIDTH = 150


def chosen(only: Sequence[str]) -> list[Check]:
    """Checks that `only` names: a client, a test, or a part of a kit's dotted name. Pure.

    Raises ValueError for a name that names nothing.
    """
    for name in only:
        if not any(_is_named(check, name) for check in CHECKS):
            message = f"nothing is called {name}; clients are {', '.join(CLIENTS)}"
            raise ValueError(message)
    return [
        check for check in CHECKS if not only or any(_is_named(check, name) for name in only)
    ]


def _is_named(check: Check, name: str) -> bool:
    return name in (check.client, check.name, *check.name.split("."))


def run_all(checks: Sequence[Check], work: Workplace, progress: Console) -> list[Outcome]:
    """Run `checks`, those of one server together; outcomes stand in the order of `checks`."""
    outcomes: dict[int, Outcome] = {}
    groups: dict[str, list[int]] = {}
    for number, check in enumerate(checks):
        reason = _reason_not(check)
        if reason:
            outcomes[number] = _not_run(check, "skipped", reason)
        else:
            groups.setdefault(check.model, []).append(number)
    for model, numbers in groups.items():
        progress.print(f"serving {model}", markup=False, highlight=False)
        try:
            with serving(model, work.run / f"{model}.log") as url:
                for number in numbers:
                    python = work.python(checks[number].client)
                    outcomes[number] = run_check(checks[number], python, work.run, url)
                    _tell(progress, outcomes[number])
        except NotServed as error:
            progress.print(str(error), markup=False)
            for number in numbers:
                outcomes[number] = _not_run(checks[number], "fail", str(error))
    return [outcomes[number] for number in range(len(checks))]


def _reason_not(check: Check) -> str:
    if check.why_not:
        return check.why_not
    is_blind = check.needs_pictures and check.model != TABLETOP
    return f"{check.model} sees no pictures" if is_blind else ""


def _not_run(check: Check, result: Result, reason: str) -> Outcome:
    return Outcome(check=check, result=result, error=reason)


def _tell(progress: Console, outcome: Outcome) -> None:
    words = f"{outcome.result:8s}{outcome.seconds:6.1f} s  {outcome.check.client} "
    progress.print(
        f"{words}{outcome.check.name}", markup=False, highlight=False, soft_wrap=True
    )


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", metavar="DIR", help="keep environments and logs here")
    parser.add_argument(
        "--model",
        choices=[TABLETOP, SMOLLM2],
        help="run every test on this model; default: the one that fits each test",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="a client or test; repeat it",
    )
    parser.add_argument("--json", metavar="FILE", help="write one JSON object ('-': to stdout)")
    return parser.parse_args()


def _report(outcomes: Sequence[Outcome], seconds: float, target: str | None) -> None:
    """Print the table, and write the record to `target`, where `-` is standard output."""
    record = Record(
        repeats=1,
        summary={**summary_of(outcomes), "wall_s": round(seconds, 1)},
        rows=[one.row() for one in outcomes],
        command=" ".join(["python -m compat.sglang_clients", *sys.argv[1:]]),
    )
    text = json.dumps(asdict(record), indent=2)
    if target == "-":
        print(text)
        return
    if target is not None:
        Path(target).write_text(text + "\n")
    console = Console(soft_wrap=True, width=max(Console().width, _TABLE_WIDTH))
    console.print(table_of(outcomes))
    for name, value in record.summary.items():
        console.print(f"  {name:20s} {value:g}", highlight=False)


def main() -> None:
    """Parse flags, prepare, run, report; exit 1 if a test failed that must pass."""
    flags = _flags()
    try:
        checks = [
            replace(check, model=flags.model or check.model) for check in chosen(flags.only)
        ]
    except ValueError as error:
        sys.exit(str(error))
    progress = Console(stderr=True)
    start_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mmserve-compat-") as scratch:
        try:
            work = prepare(Path(flags.work or scratch), {check.client for check in checks})
        except subprocess.CalledProcessError as error:
            sys.exit(f"no environment for the clients: {' '.join(error.cmd)} failed")
        outcomes = run_all(checks, work, progress)
    _report(outcomes, time.monotonic() - start_s, flags.json)
    sys.exit(not has_passed(outcomes))


if __name__ == "__main__":
    main()
