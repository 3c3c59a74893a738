"""What every benchmark prints: machine, commit, command, repeats, summary, rows."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ["Record", "report"]

_PACKAGES = ("torch", "transformers", "numpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One run. Keys of `summary` that a target names stay stable; others are free."""

    repeats: int
    summary: Mapping[str, float]
    rows: Sequence[Mapping[str, Any]]
    machine: Mapping[str, Any] = field(default_factory=lambda: machine())
    commit: str = field(default_factory=lambda: commit())
    command: str = field(default_factory=lambda: command())


def machine() -> dict[str, Any]:
    """Processor, cores, load and versions; a load above 0 makes the ratios doubtful."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        **{name: version(name) for name in _PACKAGES},
    }


def _processor() -> str:
    lines = (
        Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    )
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def commit() -> str:
    """The checked-out commit, `+` if the tree has changes; `unknown` outside a checkout."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*words: str) -> str:
    here = Path(__file__).parent
    done = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def command() -> str:
    """How this run was started."""
    name = Path(sys.argv[0]).stem
    return " ".join(["python -m", f"benchmarks.{name}", *sys.argv[1:]])


def report(record: Record, target: str | None) -> None:
    """Print a table, or one JSON object to `target` (a file, or `-` for standard output)."""
    if target is None:
        _show(record)
        return
    text = json.dumps(asdict(record), indent=2)
    if target == "-":
        print(text)
    else:
        Path(target).write_text(text + "\n")
        _show(record)


def _show(record: Record) -> None:
    """Rows as a table, what is the same in all of them above it, then the summary."""
    console = Console()
    console.print(f"{record.command}  ({record.commit}, {record.machine['processor']})")
    same, names = _split_columns(record.rows)
    if same:
        console.print("  ".join(f"{name}={_cell(value)}" for name, value in same.items()))
    wide = Console(width=max(console.width, 12 * len(names)), soft_wrap=True)
    table = Table(*names)
    for row in record.rows:
        table.add_row(*(_cell(row.get(name, "")) for name in names))
    wide.print(table)
    for name, value in record.summary.items():
        console.print(f"  {name:34s} {value:.4g}")


def _split_columns(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """What is the same in all rows, and the names of what is not."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    if len(rows) < 2:
        return {}, names
    first = rows[0]
    same = {n: first[n] for n in names if all(n in r and r[n] == first.get(n) for r in rows)}
    return same, [name for name in names if name not in same]


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
