"""The device script runs anywhere, and needs nothing that a bare machine lacks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
_LACKING = (
    "av", "decord", "fastapi", "flashinfer", "gguf", "httpcore", "httpx", "hypothesis",
    "llguidance", "prometheus_client", "rich", "starlette", "typer", "uvicorn",
)  # fmt: skip
_BARRED = f"""
import sys
class Barred:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {_LACKING!r}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Barred())
import runpy
"""


@pytest.mark.slow
def test_the_dry_run_passes(tmp_path: Path) -> None:
    """Every section runs at tiny sizes on the CPU, nothing breaks, and greedy answers agree."""
    out = tmp_path / "device.json"
    options = ["--dry-run", "--out", out]
    subprocess.run(
        ["env", f"PYTHON={sys.executable}", ROOT / "benchmarks/device/run.sh", *options],
        check=True,
        capture_output=True,
    )
    record = json.loads(out.read_text())
    assert record["broken"] == {}
    sections = {line["section"] for line in record["lines"]}
    assert sections == {"ceilings", "kernels", "equality", "decode", "programs", "tests"}
    shares = [line["value"] for line in record["lines"] if line["section"] == "equality"]
    assert shares == [1.0] * 3


def test_it_imports_on_a_bare_machine() -> None:
    """Its modules load where the packages of server, grammars and clips are not installed."""
    code = _BARRED + "import benchmarks.device.run; print('loaded')"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout == "loaded\n"
