"""What the scripts of public clients share: the scene, comparing, and being called.

A script is called as `python NAME.py URL TEST OPTIONS` in a folder that holds `scene.json`:
{"image": path, "questions": [{"question", "answer", "choices"}, ...]}, which the model is known
to answer rightly, so another answer is the fault of the way.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["MODEL", "Test", "call", "picture", "questions", "same"]

MODEL = "tabletop"
Test = Callable[[str], None]
"""Takes the server's address."""


def _scene() -> dict[str, Any]:
    value: dict[str, Any] = json.loads(Path("scene.json").read_text())
    return value


def questions() -> list[dict[str, Any]]:
    """All questions about the picture."""
    return list(_scene()["questions"])


def picture() -> str:
    """The picture as a data: address."""
    content = Path(_scene()["image"]).read_bytes()
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def same(found: object, expected: object) -> None:
    """Raise AssertionError, saying both, unless they are equal."""
    if found != expected:
        message = f"{found!r} instead of {expected!r}"
        raise AssertionError(message)


def call(tests: Mapping[str, Test]) -> None:
    """Run the test that the command line names."""
    url, name = sys.argv[1:3]
    tests[name](url)
