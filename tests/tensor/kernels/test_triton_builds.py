"""Triton's kernels compiled for three GPUs without one, beside the record of what they take.

A child process builds, so that no interpreter that another test asked for is in the way.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
RECORD = ROOT / "benchmarks" / "results" / "triton_builds.json"
MOST_SHARED_BYTES = 99 * 1024
"""What a program may take on the smaller chips of these generations (8.6, 8.9, 12.0)."""

pytestmark = pytest.mark.slow


def _by_name(record: dict[str, Any]) -> dict[tuple[str, str], dict[str, int]]:
    return {(row["kernel"], row["target"]): row for row in record["rows"]}


@cache
def _recorded() -> dict[str, Any]:
    record: dict[str, Any] = json.loads(RECORD.read_text())
    return record


@cache
def _built() -> dict[tuple[str, str], dict[str, int]]:
    """What the builds take now; a kernel that does not compile fails the child."""
    pytest.importorskip("triton", reason="Triton is not installed")
    command = [
        "env",
        "-u",
        "TRITON_INTERPRET",
        sys.executable,
        "-m",
        "benchmarks.triton_builds",
    ]
    done = subprocess.run(
        [*command, "--json", "-"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return _by_name(json.loads(done.stdout))


def test_every_kernel_builds_for_every_target() -> None:
    """All that the record names compile, for Ampere, Hopper and Blackwell, and nothing else."""
    assert _built().keys() == _by_name(_recorded()).keys()
    assert {target for _, target in _built()} == {"sm_80", "sm_90", "sm_100"}


def test_no_more_registers_spill_than_recorded() -> None:
    """The stack of a thread, where spilled registers lie, is at most what the record says."""
    recorded = _by_name(_recorded())
    spilled = {
        name: row["stack_bytes"]
        for name, row in _built().items()
        if row["stack_bytes"] > recorded[name]["stack_bytes"]
    }
    assert spilled == {}


def test_shared_memory_suffices_on_the_smaller_chips() -> None:
    """No kernel takes more than 99 KiB, so those of a generation run on all of its chips."""
    assert max(row["shared_bytes"] for row in _built().values()) <= MOST_SHARED_BYTES


def test_builds_are_those_of_the_record() -> None:
    """With the Triton of the record, registers and shared memory are equal."""
    built, recorded = _built(), _recorded()
    if recorded["machine"]["triton"] != version("triton"):
        pytest.skip(f"the record is of Triton {recorded['machine']['triton']}")
    assert built == _by_name(recorded)
