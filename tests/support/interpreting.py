"""Triton's interpreter in a child process, for tests of kernels.

It must be asked for before Triton is imported, so each test file is its own child: run as a
program it computes all its cases and prints them as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

__all__ = ["computed_by", "hasten"]

ROOT = Path(__file__).parents[2]


def computed_by(file: str) -> Any:
    """What `file`, run as a program under the interpreter, prints. Cost: seconds."""
    pytest.importorskip("triton", reason="Triton is not installed")
    tests = f"PYTHONPATH={ROOT / 'tests'}"
    command = ["env", tests, "TRITON_INTERPRET=1", "OMP_NUM_THREADS=1", sys.executable, file]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def hasten() -> None:
    """Let calls between kernels' functions not replace Triton's language anew each time.

    Once for the globals of a function is enough: the launch has done it for the kernel's own
    module. A sampling test takes a third of the time so. Changes: the interpreter.
    """
    from triton.runtime import interpreter  # noqa: PLC0415 - in the child only

    seen: set[int] = set()

    def call(function: Any, *args: Any, **options: Any) -> Any:
        if id(function.fn.__globals__) not in seen:
            seen.add(id(function.fn.__globals__))
            interpreter._patch_lang(function.fn)
        return function.rewrite()(*args, **options)

    interpreter.InterpretedFunction.__call__ = call
