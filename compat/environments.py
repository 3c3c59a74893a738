"""The clients' environments: virtual environments, and the kits' files out of their wheel.

work/frontend/   venv with sglang 0.5.3 and what its frontend imports; no torch
work/kits-env/   venv with openai and requests
work/wheel/      the wheel of sglang 0.5.23, as downloaded
work/run/        where tests run: scripts, kits/*_kit.py, scene.json, scene.png
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from mmserve.testing import scene

__all__ = ["FRONTEND", "KITS", "Workplace", "kits_of", "prepare"]

FRONTEND = "sglang==0.5.3"
KITS = "sglang==0.5.23"
_FRONTEND_NEEDS = [
    *("numpy", "requests", "tqdm", "pybase64", "ipython", "pydantic", "aiohttp", "pillow"),
    *("openai", "pytest"),
]
_KITS_NEED = ["openai", "requests"]
_SCENE_SEED = 1_020_002
_CHOICES = {
    "count": [str(number) for number in range(1, 10)],
    "exists": ["yes", "no"],
    "shape": ["circle", "square", "triangle", "cross", "star"],
}
_ASKED = ("count", "count_colour", "what_at", "shape", "exists", "number")


class Workplace:
    """The folders of one run under `root`."""

    def __init__(self, root: Path) -> None:
        self.run = root / "run"
        self.wheel = root / "wheel"
        self.frontend = root / "frontend"
        self.kits = root / "kits-env"

    def python(self, client: str) -> Path:
        """The interpreter of a client's environment. Pure."""
        return (self.kits if client == "kits" else self.frontend) / "bin" / "python"


def prepare(root: Path, clients: set[str]) -> Workplace:
    """Everything that `clients` need under `root`; what is there from before is kept.

    Raises subprocess.CalledProcessError if a package cannot be had.

    Cost: half a minute and about 100 MB of packages the first time.
    """
    work = Workplace(root.resolve())
    work.run.mkdir(parents=True, exist_ok=True)
    for script in (Path(__file__).parent / "inside").glob("*.py"):
        shutil.copy(script, work.run)
    _save_scene(work.run)
    if clients & {"frontend", "programs"}:
        _environment(work.frontend, [_FRONTEND_NEEDS, ["--no-deps", FRONTEND]])
    if "kits" in clients:
        _environment(work.kits, [_KITS_NEED])
        kits_of(_wheel(work.wheel), work.run / "kits")
    return work


def _environment(folder: Path, installs: list[list[str]]) -> None:
    ready = folder / ".ready"
    wanted = json.dumps(installs)
    if ready.exists() and ready.read_text() == wanted:
        return
    _call(sys.executable, "-m", "venv", "--clear", str(folder))
    for packages in installs:
        _pip(folder / "bin" / "python", "install", *packages)
    ready.write_text(wanted)


def _wheel(folder: Path) -> Path:
    """The kits' wheel, downloaded if it is not there; it is never installed."""
    pattern = KITS.replace("==", "-") + "-*.whl"
    if not list(folder.glob(pattern)):
        _pip(
            Path(sys.executable),
            *("download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), KITS),
        )
    return next(folder.glob(pattern))


def kits_of(wheel: Path, folder: Path) -> list[Path]:
    """The kits' files of `wheel`, written flat into `folder`, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    written = []
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith("sglang/test/kits/") and name.endswith("_kit.py"):
                target = folder / Path(name).name
                target.write_bytes(archive.read(name))
                written.append(target)
    return written


def _save_scene(folder: Path) -> None:
    """A picture that tabletop knows, also under the name that the original's test wants."""
    drawn = scene(_SCENE_SEED)
    for name in ("scene.png", "example_image.png"):
        drawn.image.save(folder / name)
    questions = [
        {
            "question": one.question,
            "answer": one.answer,
            "choices": _CHOICES.get(one.kind, []),
        }
        for one in drawn.questions
        if one.kind in _ASKED
    ]
    value = {"image": str(folder / "scene.png"), "questions": questions}
    (folder / "scene.json").write_text(json.dumps(value))


def _pip(python: Path, *words: str) -> None:
    _call(str(python), "-m", "pip", "-qq", "--disable-pip-version-check", *words)


def _call(*words: str) -> None:
    subprocess.run(words, check=True)
