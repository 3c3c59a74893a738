"""The compiled library: built once, by several at once, and refused with a reason."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from mmserve.core import BadRequest
from mmserve.kernels import choose_ops
from mmserve.kernels.native import NativeOps, Unbuildable
from mmserve.kernels.native import library as libraries
from mmserve.kernels.native.build import SOURCES, Compiler, build, find_compiler
from mmserve.kernels.native.library import load, native_library
from mmserve.kernels.native.ops import check_against
from mmserve.kernels.ops import TorchOps

CPU = torch.device("cpu")

try:
    COMPILER = find_compiler(("cc", "gcc", "clang"))
    native_library()
except Unbuildable as reason:
    pytest.skip(f"no native library: {reason}", allow_module_level=True)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A source of one function, which compiles in no time."""
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "one.c").write_text("int mmserve_one(void) { return 1; }\n")
    return folder


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A process that has not loaded the library yet."""
    monkeypatch.setattr(libraries, "native_library", native_library.__wrapped__)
    monkeypatch.setattr("mmserve.kernels.native.ops.native_library", native_library.__wrapped__)
    return monkeypatch


def test_a_library_is_built_once(sources: Path, tmp_path: Path) -> None:
    """The second build gives the same file, untouched, and leaves nothing else behind."""
    kept = build(COMPILER, tmp_path / "kept", sources)
    made_ns = kept.stat().st_mtime_ns
    assert build(COMPILER, tmp_path / "kept", sources) == kept
    assert kept.stat().st_mtime_ns == made_ns
    assert [*kept.parent.iterdir()] == [kept]
    assert kept.parent.stat().st_mode & 0o077 == 0


def test_another_source_or_compiler_is_another_library(sources: Path, tmp_path: Path) -> None:
    """What a library is made of is in its name: a stale one is never loaded."""
    first = build(COMPILER, tmp_path / "kept", sources)
    other = build(Compiler(COMPILER.path, "another version"), tmp_path / "kept", sources)
    (sources / "shared.h").write_text("#define ONE 1\n")
    third = build(COMPILER, tmp_path / "kept", sources)
    assert len({first, other, third}) == 3


def test_builds_at_once_give_one_whole_library(sources: Path, tmp_path: Path) -> None:
    """Four builders at once end with the same file and nothing beside it."""
    with ThreadPoolExecutor(4) as pool:
        tasks = [pool.submit(build, COMPILER, tmp_path / "kept", sources) for _ in range(4)]
        found = {task.result() for task in tasks}
    assert len(found) == 1
    assert [*(tmp_path / "kept").iterdir()] == [*found]


def test_a_source_that_does_not_compile_says_why(sources: Path, tmp_path: Path) -> None:
    """The compiler's first complaint is the reason, and no file is left."""
    (sources / "two.c").write_text("int broken(void) { return nowhere; }\n")
    with pytest.raises(Unbuildable, match="nowhere"):
        build(COMPILER, tmp_path / "kept", sources)
    assert [*(tmp_path / "kept").iterdir()] == []


def test_a_file_that_is_no_library_says_so(tmp_path: Path) -> None:
    """A damaged file is a reason, not a crash."""
    damaged = tmp_path / "damaged.so"
    damaged.write_bytes(b"not a library")
    with pytest.raises(Unbuildable, match="cannot be loaded"):
        load(damaged)


def test_a_library_without_the_functions_says_so(sources: Path, tmp_path: Path) -> None:
    """What was built from other sources is refused when it is loaded."""
    with pytest.raises(Unbuildable, match="mmserve_"):
        load(build(COMPILER, tmp_path / "kept", sources))


def test_a_cache_that_cannot_be_written_does_not_matter(
    tmp_path: Path, no_library: pytest.MonkeyPatch
) -> None:
    """The library is then built in a folder that is gone afterwards."""
    (tmp_path / "file").write_text("where a folder should be")
    no_library.setattr(libraries, "cache_folder", lambda: tmp_path / "file")
    no_library.setattr("tempfile.tempdir", str(tmp_path))
    built = libraries.native_library()
    assert built.mmserve_panel_width() == native_library().mmserve_panel_width()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_without_a_compiler_torch_computes_and_the_reason_is_told(
    no_library: pytest.MonkeyPatch,
) -> None:
    """`auto` goes on with torch and a note; asked for by name, native is refused."""
    no_library.setattr(libraries, "c_compilers", lambda: ("no-such-compiler",))
    chosen = choose_ops("auto", CPU, torch.float32)
    assert chosen.ops.name == "torch"
    assert any("no C compiler is found (no-such-compiler)" in note for note in chosen.notes)
    with pytest.raises(BadRequest, match="no-such-compiler"):
        choose_ops("native", CPU, torch.float32)


@pytest.mark.parametrize(
    ("device", "dtype", "reason"),
    [("cpu", torch.bfloat16, "not in bfloat16"), ("cuda", torch.float32, "not on cuda")],
)
def test_what_native_cannot_compute_is_a_reason(
    device: str, dtype: torch.dtype, reason: str
) -> None:
    """Another device or dtype is refused by name, with what is missing."""
    with pytest.raises(BadRequest, match=reason):
        choose_ops("native", torch.device(device), dtype)


def test_native_is_the_fastest_on_a_cpu_in_float32() -> None:
    """`auto` takes it where it can be built."""
    assert choose_ops("auto", CPU, torch.float32).ops.name == "native"


class _Wrong(NativeOps):
    """Native ops of which one is wrong."""

    def gate(self, activation: str, gate_up: torch.Tensor) -> torch.Tensor:
        return super().gate(activation, gate_up) * 1.01


def test_a_library_that_computes_something_else_is_refused() -> None:
    """A function one per cent off is found before a model is loaded, and named."""
    check_against(NativeOps(), TorchOps())
    with pytest.raises(Unbuildable, match="the compiled gate differs"):
        _Wrong()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_torch_and_the_library_share_one_openmp() -> None:
    """A process that has computed with both has one libgomp mapped: one pool of threads."""
    script = (
        "import torch\n"
        "from mmserve.kernels.native import NativeLinear\n"
        "torch.set_num_threads(2)\n"
        "x = torch.randn(64, 576)\n"
        "NativeLinear(torch.randn(576, 576))(x @ torch.randn(576, 576))\n"
        "print(open('/proc/self/maps').read())\n"
    )
    maps = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    found = set(re.findall(r"\S*/lib(?:gomp|omp|iomp5)\S*", maps))
    assert len(found) == 1


@pytest.mark.parametrize("kind", ["x86-64", "haswell", "skylake-avx512", "sapphirerapids"])
def test_sources_compile_for_other_processors(kind: str, tmp_path: Path) -> None:
    """Vectors of 4, 8 and 16 floats, and matrix tiles, without a warning."""
    if os.uname().machine != "x86_64" or "clang" in COMPILER.version:
        pytest.skip("names of gcc's x86 processors")
    gcc = shutil.which(COMPILER.path) or COMPILER.path
    for source in sorted(SOURCES.glob("*.c")):
        command = [gcc, "-std=c11", "-O1", "-fopenmp", f"-march={kind}", "-Wall", "-Wextra"]
        done = subprocess.run(
            [*command, "-Werror", "-fsyntax-only", str(source)], capture_output=True, text=True
        )
        assert done.stderr == ""
