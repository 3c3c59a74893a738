"""The room from outside: light to import, and exactly what it says it has."""

from __future__ import annotations

import subprocess
import sys

import mmserve.lang
from mmserve.lang import ir


def test_importing_the_language_loads_nothing_heavy():
    """No torch, no HTTP client, no picture library, no event loop, no numpy of its own."""
    heavy = ("torch", "httpx", "PIL", "asyncio", "rich", "pydantic", "mmserve.engine")
    code = f"import sys, mmserve.lang; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"


def test_all_names_exist():
    """`__all__` is sorted and true."""
    names = mmserve.lang.__all__

    assert all(hasattr(mmserve.lang, name) for name in names)
    assert sorted(set(names)) == sorted(names)


def test_programs_find_the_patterns_where_they_look():
    """REGEX_* are also in `mmserve.lang.ir`."""
    assert ir.REGEX_INT == mmserve.lang.REGEX_INT == r"[-+]?[0-9]+[ \n]*"
