"""One test of a kit: `python kits.py URL MODULE.MIXIN.TEST OPTIONS`.

The kits' files lie in the folder `kits` beside the working directory's other files.
"""

from __future__ import annotations

import importlib
import json
import sys
import unittest
from functools import partialmethod
from pathlib import Path
from typing import Any

import openai
import requests


class Running:
    """A server's process as far as the kits look at it: it has not ended."""

    def poll(self) -> None:
        """No exit status. Pure."""


def asking(kind: type, prompt: str | None) -> dict[str, Any]:
    """The mixin's own senders with another prompt than theirs. Pure."""
    senders = [name for name in dir(kind) if name.startswith("_run_")] if prompt else []
    return {name: partialmethod(getattr(kind, name), prompt=prompt) for name in senders}


def main() -> None:
    """Mix, run, and end with the error's last line and status 1 if the test failed."""
    url, name, options = sys.argv[1:]
    module, mixin, test = name.partition("@")[0].split(".")
    sys.path.insert(0, str(Path.cwd() / "kits"))
    model = requests.get(f"{url}/model_info", timeout=10).json()["model_path"]
    members = {
        "base_url": url,
        "model": model,
        "served_model_name": model,
        "client": openai.Client(api_key="EMPTY", base_url=f"{url}/v1"),
        "process": Running(),
        **json.loads(options),
    }
    kind = getattr(importlib.import_module(module), mixin)
    members |= asking(kind, members.pop("prompt", None))
    case = type("Mixed", (kind, unittest.TestCase), members)(test)
    result = unittest.TestResult()
    case.run(result)
    for _, trace in (*result.failures, *result.errors):
        print(trace, file=sys.stderr)
    if result.testsRun != 1 or result.skipped or not result.wasSuccessful():
        sys.exit(1)


if __name__ == "__main__":
    main()
