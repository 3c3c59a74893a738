"""The compiled library in this process: found or built, loaded, and checked, once.

Loaded after torch, so that OpenMP is the library that torch has loaded already and both share
one pool of threads. A call releases the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import functools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from mmserve.core.config import c_compilers, cache_folder
from mmserve.kernels.native.build import Unbuildable, build, find_compiler

__all__ = ["Signature", "load", "native_library"]

Signature = tuple[type, ...]

_address, _count = ctypes.c_void_p, ctypes.c_int64
_choice, _threads, _number = ctypes.c_int32, ctypes.c_int32, ctypes.c_float
_SIGNATURES: dict[str, Signature] = {
    "mmserve_large_pages": (_address, _count),
    "mmserve_norm": (_address, _address, _address, _count, _count, _number, _threads),
    "mmserve_add_norm": (
        *(_address, _address, _address, _address),
        *(_count, _count, _number, _threads),
    ),
    "mmserve_gate": (_address, _address, _count, _count, _choice, _threads),
}
"""Arguments of the functions that return nothing; addresses are plain integers."""


@functools.cache
def native_library() -> ctypes.CDLL:
    """The library, built if need be. Raises Unbuildable, each time anew."""
    compiler = find_compiler(c_compilers())
    reasons: list[str] = []
    for place in (cache_folder() / "native", None):
        try:
            with _folder(place) as folder:
                return load(build(compiler, folder, libraries=_openmp()))
        except Unbuildable as reason:
            reasons.append(str(reason))
    raise Unbuildable("; ".join(dict.fromkeys(reasons)))


def load(path: Path) -> ctypes.CDLL:
    """The library at `path` with typed functions. Raises Unbuildable."""
    try:
        library = ctypes.CDLL(str(path))
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, None
        library.mmserve_product.argtypes = (_address, _address, _count, _address, _threads)
        library.mmserve_product.restype = ctypes.c_int
        library.mmserve_tile_rows.argtypes = ()
        library.mmserve_tile_rows.restype = ctypes.c_int64
        library.mmserve_panel_width.argtypes = ()
        library.mmserve_panel_width.restype = ctypes.c_int32
        library.mmserve_layers.argtypes = (_address, _address)
        library.mmserve_layers.restype = ctypes.c_int
        library.mmserve_layers_room.argtypes = (_address, _count, _count)
        library.mmserve_layers_room.restype = _count
    except (OSError, AttributeError) as error:
        raise Unbuildable(f"{path} cannot be loaded: {error}") from error
    return library


@contextmanager
def _folder(place: Path | None) -> Iterator[Path]:
    """The folder, or a new one that is gone afterwards; what is loaded from it stays."""
    if place is not None:
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="mmserve-") as name:
        yield Path(name)


def _openmp() -> tuple[Path, ...]:
    """OpenMP as torch brings it, if it does: linking it by name makes it the only one. Pure."""
    return tuple(sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*")))
