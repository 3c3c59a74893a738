"""Registers, stack and shared memory of every Triton kernel on every target, without a GPU.

`benchmarks/results/triton_builds.json` is this with `--json`; a test compares with it. What a
thread holds on its stack are registers that spilled.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from importlib.metadata import version

from benchmarks.record import Record, machine, report
from mmserve.kernels.triton.builds import all_builds, recorded_builds
from mmserve.kernels.triton.compiled import compiled


def main() -> None:
    """Parse flags, build, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the record there; - is stdout")
    parser.add_argument("--all", action="store_true", help="every registered specialisation")
    flags = parser.parse_args()
    builds = all_builds() if flags.all else recorded_builds()
    rows = [
        {
            "kernel": build.name,
            "target": f"sm_{target}",
            "warps": build.num_warps,
            "stages": build.num_stages,
            **asdict(compiled(build, target)),
        }
        for build in builds
        for target in build.targets
    ]
    summary = {
        "num_builds": len(rows),
        "most_stack_bytes": max(int(row["stack_bytes"]) for row in rows),
        "most_registers": max(int(row["registers"]) for row in rows),
        "most_shared_bytes": max(int(row["shared_bytes"]) for row in rows),
    }
    built_by = {**machine(), "triton": version("triton")}
    report(Record(repeats=1, summary=summary, rows=rows, machine=built_by), flags.json)


if __name__ == "__main__":
    main()
