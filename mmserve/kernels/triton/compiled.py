"""Kernels built for a GPU that need not be there: what each takes of its registers and memory.

    Build (name, kernel, signature, constants) + target -> Footprint (registers, spills, ...)

`builds` lists what is built and recorded. Source: the resource usage that `cuobjdump`, which
comes with Triton, reads from the binary.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from mmserve.kernels.triton.tables import TARGETS

__all__ = ["Build", "Footprint", "compiled", "signature"]

_USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")


@dataclass(frozen=True, slots=True, eq=False)
class Build:
    """One specialisation of a kernel for one or more targets.

    Args:
        name: what the record calls it.
        kernel: the function under `triton.jit`.
        signature: type of each argument in the kernel's order, as Triton spells it; a type that
            ends in `:16` is a pointer or number divisible by 16, `constexpr` is in `constants`.
        constants: value of each `constexpr`; also of a number that is specialised to 1.
        targets: compute capabilities.
    """

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    num_warps: int = 4
    num_stages: int = 3
    targets: tuple[int, ...] = TARGETS


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a kernel takes.

    Args:
        registers: of a thread.
        stack_bytes: of a thread; registers that spill lie there, so 0 means that none does.
        shared_bytes: of a program.
    """

    registers: int
    stack_bytes: int
    shared_bytes: int


def signature(
    kernel: Any,  # noqa: ANN401 - Triton's functions have no type of their own
    types: Mapping[str, str],
    constants: Iterable[str],
) -> dict[str, str]:
    """Types in the kernel's order: `constexpr` for constants, i32 where `types` is silent.

    A key of `types` may name several arguments, with spaces between. Pure.
    """
    known = {name: kind for names, kind in types.items() for name in names.split()}
    known |= dict.fromkeys(constants, "constexpr")
    return {name: known.get(name, "i32") for name in kernel.arg_names}


def compiled(build: Build, capability: int) -> Footprint:
    """Compile for the compute capability (80, 90, 100) and read the binary.

    Changes: Triton's cache on disk. Cost: 1 to 20 s, milliseconds when cached.
    Raises: what Triton raises if the kernel does not compile.
    """
    names = list(build.signature)
    types = {name: kind.removesuffix(":16") for name, kind in build.signature.items()}
    attributes = {
        (names.index(name),): [["tt.divisibility", 16]]
        for name, kind in build.signature.items()
        if kind.endswith(":16")
    }
    source = ASTSource(build.kernel, types, dict(build.constants), attributes)
    options = {
        "num_warps": build.num_warps,
        "num_stages": build.num_stages,
        "enable_fp_fusion": True,
    }
    binary = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    registers, stack = _usage(binary.asm["cubin"])
    return Footprint(registers, stack, binary.metadata.shared)


def _usage(cubin: bytes) -> tuple[int, int]:
    """Registers and stack bytes of a thread. Pure."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with TemporaryDirectory() as scratch:
        file = Path(scratch) / "kernel.cubin"
        file.write_bytes(cubin)
        command = [str(tool), "--dump-resource-usage", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = _USAGE.search(done.stdout)
    if found is None:
        raise ValueError(f"cuobjdump said {done.stdout!r}")
    return int(found[1]), int(found[2])
