"""The house tests itself: floors, front door, file sizes, names, error tree, glossary."""

from __future__ import annotations

import importlib
import inspect
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import mmserve.core

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "mmserve"
ROOMS = sorted(p.parent.name for p in PACKAGE.glob("*/__init__.py"))
PLANNING = [room for room in ROOMS if room not in {"kernels", "models", "runner", "engine"}]
FORBIDDEN_NAMES = {"utils", "common", "helpers", "misc", "manager"}


def fresh(code: str) -> str:
    """Output of a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_floors_hold() -> None:
    """No room imports from a higher floor or through a closed door."""
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("room", ["", *(f".{room}" for room in PLANNING)])
def test_planning_rooms_import_without_torch(room: str) -> None:
    """A fresh interpreter that imports a planning room has not imported torch."""
    assert fresh(f"import sys, mmserve{room}; print('torch' in sys.modules)") == "False"


def test_front_door_is_light() -> None:
    """`import mmserve` imports the standard library and itself alone, and little of these."""
    code = (
        "import sys; before = set(sys.modules); import mmserve; mmserve.gen; "
        "print(*(set(sys.modules) - before))"
    )
    loaded = fresh(code).split()
    foreign = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names
    assert foreign == {"mmserve"}
    assert len(loaded) < 250


def test_files_stay_small() -> None:
    """No file of the package is longer than 500 lines."""
    sizes = {p: len(p.read_text().splitlines()) for p in PACKAGE.rglob("*.py")}
    assert {str(p): n for p, n in sizes.items() if n > 500} == {}


def test_forbidden_names_do_not_appear() -> None:
    """No module is called utils, common, helpers, misc or manager."""
    assert [p for p in PACKAGE.rglob("*.py") if p.stem in FORBIDDEN_NAMES] == []


@pytest.mark.parametrize("room", ROOMS)
def test_all_names_what_exists(room: str) -> None:
    """A room's `__all__` is sorted, without repeats, and each name is there."""
    module = importlib.import_module(f"mmserve.{room}")
    names = module.__all__
    assert len(set(names)) == len(names)
    assert [name for name in names if not hasattr(module, name)] == []


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_introduce_themselves(room: str) -> None:
    """A room's docstring says its job in at most 15 lines."""
    text = importlib.import_module(f"mmserve.{room}").__doc__
    assert text
    assert len(text.strip().splitlines()) <= 15


def error_classes() -> list[type]:
    """Every class of the error tree."""
    found, todo = [], [mmserve.core.MmserveError]
    while todo:
        one = todo.pop()
        found.append(one)
        todo += one.__subclasses__()
    return [c for c in found if c.__module__ == "mmserve.core.errors"]


def test_error_codes_are_their_own() -> None:
    """Every error class has its own code and stands in the tree drawn at the file's top."""
    classes = error_classes()
    assert len({c.code for c in classes}) == len(classes)
    drawing = inspect.getdoc(sys.modules["mmserve.core.errors"]) or ""
    assert [c.__name__ for c in classes if c.__name__ not in drawing] == []


def test_glossary_defines_words_once() -> None:
    """No word of the glossary is defined twice."""
    words = re.findall(r"^- \*\*(.+?)\*\*", (ROOT / "docs/glossary.md").read_text(), re.M)
    assert len(words) == len(set(words)) > 20


def test_changelog_has_the_version() -> None:
    """The changelog has an entry for the version that the package has."""
    version = importlib.import_module("importlib.metadata").version("mmserve")
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("page", ["settings.md", "sampling.md", "errors.md", "metrics.md"])
def test_reference_pages_say_what_the_code_declares(page: str) -> None:
    """The generated pages are up to date; `python docs/reference/generate.py` writes them."""
    path = ROOT / "docs/reference"
    generated = runpy.run_path(str(path / "generate.py"))["PAGES"][page]()
    assert (path / page).read_text() == generated
