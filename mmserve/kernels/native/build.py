"""C sources to one shared library, compiled for this processor once and kept.

    sources + flags + compiler + processor -> digest -> <cache>/native/<digest>.so

The compiler runs in a process of its own; a failure is a `Unbuildable` with a reason to show.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["SOURCES", "Compiler", "Unbuildable", "build", "find_compiler"]

SOURCES = Path(__file__).parent / "sources"
_FLAGS = (
    "-std=c11",
    "-O3",
    "-march=native",
    "-fopenmp",
    "-fno-math-errno",
    "-ffp-contract=fast",  # but no -ffast-math: sums keep their order
    "-fvisibility=hidden",
    "-fPIC",
    "-shared",
)
_TIMEOUT_S = 120


class Unbuildable(Exception):
    """Why there is no library."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C compiler that answers.

    Args:
        path: of the program.
        version: what it says of itself.
    """

    path: str
    version: str


def find_compiler(names: Sequence[str]) -> Compiler:
    """The first of these that is there. Raises Unbuildable."""
    for name in names:
        path = shutil.which(name)
        if path is not None:
            return Compiler(path, _output_of([path, "--version"]))
    raise Unbuildable(f"no C compiler is found ({', '.join(names)})")


def build(
    compiler: Compiler, folder: Path, sources: Path = SOURCES, libraries: Sequence[Path] = ()
) -> Path:
    """The library of all `*.c` in `sources`: from `folder`, or compiled into it.

    Args:
        compiler: compiles it.
        folder: where libraries are kept; made if need be, for this user alone.
        sources: folder of `*.c` and `*.h`.
        libraries: to link with before the compiler's own, OpenMP's for one.

    Two processes may build at once: each writes a file of its own, and the last to be renamed
    stays. Cost: 5 s where nothing is kept. Raises Unbuildable.
    """
    kept = folder / f"{_digest(compiler, sources, libraries)}.so"
    if kept.is_file():
        return kept
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(suffix=".so", prefix="new-", dir=folder)
    except OSError as error:
        raise Unbuildable(f"{folder} cannot be written: {error.strerror}") from error
    os.close(number)
    made = Path(name)
    try:
        _output_of([compiler.path, *_arguments(sources, libraries), "-o", name])
        made.replace(kept)
    except OSError as error:
        raise Unbuildable(f"{kept} cannot be written: {error.strerror}") from error
    finally:
        made.unlink(missing_ok=True)
    return kept


def _arguments(sources: Path, libraries: Sequence[Path]) -> list[str]:
    files = [str(path) for path in sorted(sources.glob("*.c"))]
    linked = ["-Wl,--as-needed", *map(str, libraries)] if libraries else []
    return [*_FLAGS, *files, *linked, "-lm"]


def _digest(compiler: Compiler, sources: Path, libraries: Sequence[Path]) -> str:
    """A name for the library that these would make here. Pure."""
    total = hashlib.sha256()
    parts = [compiler.path, compiler.version, *_FLAGS, *map(str, libraries), _processor()]
    for path in sorted(sources.glob("*.[ch]")):
        parts += [path.name, path.read_text(encoding="utf-8")]
    for part in parts:
        total.update(part.encode() + b"\0")
    return total.hexdigest()[:32]


def _processor() -> str:
    """What tells whether code made here runs: the kind of processor and what it can do."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    told = ("flags", "Features", "model name", "cpu family", "model", "CPU part")
    facts = {line for line in lines if line.split("\t")[0].strip() in told}
    return "\n".join([platform.platform(terse=True), platform.machine(), *sorted(facts)])


def _output_of(command: Sequence[str]) -> str:
    """What a program prints. Raises Unbuildable if it fails, with its first complaint."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Unbuildable(f"{command[0]} cannot be run: {error}") from error
    if done.returncode:
        complaints = [line for line in done.stderr.splitlines() if "error" in line]
        reason = (complaints or done.stderr.splitlines() or ["no reason given"])[0]
        raise Unbuildable(f"{command[0]} fails: {reason}")
    return done.stdout
