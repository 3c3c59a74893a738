"""Runs public clients of OpenAI's API, unchanged, against `mmserve serve` with tabletop.

    python -m compat.public_clients [--only NAME] [--json FILE]

Environments are made under `.bench/clients` from pinned lists, nothing resolved; one that is
there as its list says is left alone. The exit status is 0 if every test passes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from benchmarks.engines.install import Installer, find_installer
from benchmarks.engines.worker import ENVIRONMENTS
from benchmarks.record import Record
from compat.checks import TABLETOP, Check
from compat.environments import prepare
from compat.outcomes import Outcome, run_check, summary_of, table_of
from compat.public_checks import PUBLIC_CHECKS, PUBLIC_CLIENTS, REQUIREMENTS, python_of
from compat.serving import NotServed, serving

__all__ = ["FOLDER", "make_environment", "run_public"]

FOLDER = ENVIRONMENTS / "clients"
"""Where the clients' environments are."""
_STAMP = "installed.txt"
_TABLE_WIDTH = 150


def make_environment(client: str, installer: Installer, folder: Path = FOLDER) -> None:
    """Make a client's environment unless it is there. Changes: `folder / client`.

    Raises subprocess.CalledProcessError if a package cannot be had.
    """
    requirements = REQUIREMENTS / f"{client}.txt"
    stamp = folder / client / _STAMP
    wanted = requirements.read_text(encoding="utf-8")
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return
    shutil.rmtree(folder / client, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    for command in installer.commands(python_of(client, folder), requirements):
        subprocess.run(command, check=True)
    stamp.write_text(wanted, encoding="utf-8")


def run_public(
    checks: Sequence[Check], environments: Path, work: Path, progress: Console
) -> list[Outcome]:
    """Run `checks` against one server, in their order. Raises NotServed."""
    run = prepare(work, set()).run
    outcomes = []
    with serving(TABLETOP, run / "server.log") as url:
        for check in checks:
            outcome = run_check(check, python_of(check.client, environments), run, url)
            words = f"{outcome.result:8s}{outcome.seconds:6.1f} s  {check.client} {check.name}"
            progress.print(words, markup=False, highlight=False, soft_wrap=True)
            outcomes.append(outcome)
    return outcomes


def _report(outcomes: Sequence[Outcome], seconds: float, target: str | None) -> None:
    record = Record(
        repeats=1,
        summary={**summary_of(outcomes), "wall_s": round(seconds, 1)},
        rows=[one.row() for one in outcomes],
        command=" ".join(["python -m compat.public_clients", *sys.argv[1:]]),
    )
    text = json.dumps(asdict(record), indent=2)
    if target == "-":
        print(text)
        return
    if target is not None:
        Path(target).write_text(text + "\n", encoding="utf-8")
    console = Console(soft_wrap=True, width=max(Console().width, _TABLE_WIDTH))
    console.print(table_of(outcomes))


def main() -> None:
    """Parse flags, make environments, run, report; exit 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PUBLIC_CLIENTS, default=PUBLIC_CLIENTS)
    parser.add_argument("--install", action="store_true", help="make environments, run nothing")
    parser.add_argument("--json", metavar="FILE", help="write one JSON object ('-': to stdout)")
    flags = parser.parse_args()
    installer = find_installer(1)
    for client in flags.only:
        try:
            make_environment(client, installer)
        except subprocess.CalledProcessError as error:
            sys.exit(f"no environment for {client}: {' '.join(map(str, error.cmd))} failed")
    if flags.install:
        return
    checks = [check for check in PUBLIC_CHECKS if check.client in flags.only]
    start_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mmserve-clients-") as scratch:
        try:
            outcomes = run_public(checks, FOLDER, Path(scratch), Console(stderr=True))
        except NotServed as error:
            sys.exit(str(error))
    _report(outcomes, time.monotonic() - start_s, flags.json)
    sys.exit(any(one.result != "pass" for one in outcomes))


if __name__ == "__main__":
    main()
