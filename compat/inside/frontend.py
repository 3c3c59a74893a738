"""One program of `sglang.test.test_programs`: `python frontend.py URL NAME OPTIONS`."""

from __future__ import annotations

import json
import sys

import sglang
import sglang.test.test_programs


def main() -> None:
    """Run the program as it is; whatever it raises is the result."""
    url, name, options = sys.argv[1:]
    sglang.set_default_backend(sglang.RuntimeEndpoint(url))
    getattr(sglang.test.test_programs, f"test_{name}")(**json.loads(options))


if __name__ == "__main__":
    main()
