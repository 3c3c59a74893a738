"""Makes the other engines' environments: `python -m benchmarks.engines.install [NAME]...`.

Each file of `environments/` is the whole list of what its environment holds, pinned; nothing is
resolved, so that what an engine asks for and does not need here stays out. An environment that
cannot be made leaves its reason in `.bench/NAME.reason`, which the suite prints in its place.
One that is there as its list says is left alone.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engines import ENGINES
from benchmarks.engines.worker import ENVIRONMENTS

__all__ = ["LISTS", "Installer", "environment_names", "find_installer", "make", "pinned"]

LISTS = Path(__file__).with_name("environments")
_PIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:\[[a-z0-9,-]+\])?==[0-9][A-Za-z0-9.!+_-]*")
_LONGEST_S = 5400.0
_STAMP = "installed.txt"
_OPERATORS = "torchvision_operators"


@dataclass(frozen=True, slots=True)
class Installer:
    """What puts packages into an environment.

    Args:
        uv: the program, or None for each environment's own pip.
        settings: options for uv that say what pip's configuration says, as uv does not read it.
        num_jobs: processes that compile at once.
    """

    uv: Path | None
    settings: tuple[str, ...]
    num_jobs: int

    def commands(self, python: Path, requirements: Path) -> list[list[str]]:
        """Programs to run for an environment, one after the other. Pure."""
        jobs = ["env", f"CMAKE_BUILD_PARALLEL_LEVEL={self.num_jobs}"]
        folder = python.parents[1]
        last = ["--no-deps", "--requirement", str(requirements)]
        if self.uv is None:
            pip = [
                str(python),
                "-m",
                "pip",
                "--disable-pip-version-check",
                "install",
                "--quiet",
            ]
            return [[sys.executable, "-m", "venv", str(folder)], [*jobs, *pip, *last]]
        quiet = [*jobs, "UV_PYTHON_DOWNLOADS=never", str(self.uv), "--quiet"]
        return [
            [*quiet, "venv", "--python", sys.executable, str(folder)],
            [*quiet, "pip", "install", "--python", str(python), *self.settings, *last],
        ]


def environment_names() -> list[str]:
    """Environments that have a list, in alphabetical order. Pure."""
    return sorted(path.stem for path in LISTS.glob("*.txt"))


def pinned(requirements: Path) -> dict[str, str]:
    """Package and version of each line. Raises ValueError for a line that has none. Pure."""
    found: dict[str, str] = {}
    for line in requirements.read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if not _PIN.fullmatch(line):
            message = f"{requirements.name}: {line!r} pins no version"
            raise ValueError(message)
        name, _, version = line.partition("==")
        found[name] = version
    return found


def make(name: str, installer: Installer, environments: Path = ENVIRONMENTS) -> str:
    """Make one environment, unless it is there; the reason if it cannot be made, else "".

    Changes: writes `environments / name`, and `NAME.reason` or removes it.
    """
    requirements = LISTS / f"{name}.txt"
    folder, reason = environments / name, environments / f"{name}.reason"
    stamp = folder / _STAMP
    wanted = requirements.read_text(encoding="utf-8")
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return ""
    environments.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    python = folder / "bin" / "python"
    commands = installer.commands(python, requirements)
    imports = [
        package for spec in ENGINES if spec.environment == name for package in spec.packages
    ]
    commands.append([str(python), "-c", "import " + ", ".join(["sys", *imports])])
    for command in commands:
        if command is commands[-1] and "torchvision" in pinned(requirements):
            _declare_operators(folder)
        why = _failure(command)
        if why:
            reason.write_text(f"its environment cannot be made here: {why}\n", encoding="utf-8")
            return why
    reason.unlink(missing_ok=True)
    stamp.write_text(wanted, encoding="utf-8")
    return ""


def _declare_operators(folder: Path) -> None:
    """Let torchvision import beside the CPU build of torch. Changes: the environment."""
    for packages in folder.glob("lib/python*/site-packages"):
        shutil.copy(LISTS / f"{_OPERATORS}.py", packages)
        (packages / f"{_OPERATORS}.pth").write_text(f"import {_OPERATORS}\n", encoding="utf-8")


def _failure(command: Sequence[str]) -> str:
    """The last line that a program says before it fails; "" if it does not."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_S)
    except subprocess.TimeoutExpired:
        return f"not done after {_LONGEST_S:g} s"
    if done.returncode == 0:
        return ""
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1].strip()[:300] if lines else f"status {done.returncode}"


def find_installer(num_jobs: int, environments: Path = ENVIRONMENTS) -> Installer:
    """Uv if pip can bring it, which makes an environment in seconds; else pip itself."""
    folder = environments / "uv"
    uv = folder / "bin" / "uv"
    if not uv.is_file():
        environments.mkdir(parents=True, exist_ok=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "uv"]
        if _failure([sys.executable, "-m", "venv", str(folder)]) or _failure(pip):
            return Installer(None, (), num_jobs)
    return Installer(uv, _pip_settings(), num_jobs)


def _pip_settings() -> tuple[str, ...]:
    """Where pip is told to look for packages, as options for uv."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True
    )
    found: dict[tuple[str, str], None] = {}
    for line in done.stdout.splitlines():
        name, _, value = line.partition("=")
        option = name.rpartition(".")[2]
        if option in {"find-links", "index-url"}:
            found |= {(f"--{option}", place): None for place in value.strip("'\"").split()}
    return tuple(word for pair in found for word in pair)


def main() -> None:
    """Make the environments named, or all; one that fails does not stop the others."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="environments; default: all")
    parser.add_argument("--jobs", type=int, default=1, help="processes that compile at once")
    flags = parser.parse_args()
    unknown = sorted(set(flags.names) - set(environment_names()))
    if unknown:
        parser.error(f"no list for {', '.join(unknown)}; there are {environment_names()}")
    installer = find_installer(flags.jobs)
    for name in flags.names or environment_names():
        why = make(name, installer)
        print(f"{name:12s} {why or 'ready'}", flush=True)


if __name__ == "__main__":
    main()
