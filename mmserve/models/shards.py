"""Which files hold a checkpoint's weights, and which of them holds each tensor.

    model.safetensors.index.json     the files that it names, each tensor from the one it says
    model.safetensors                this file alone
    neither                          every .safetensors file of the directory

What lies beside them (adapters, the same weights under other names) is never read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from mmserve.core import ModelRefused

__all__ = ["opened_weights", "tensor_files", "weight_files"]

_INDEX, _WHOLE = "model.safetensors.index.json", "model.safetensors"
_POINTER = b"version https://git-lfs"


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of a checkpoint, in order. Raises ModelRefused. Pure."""
    index, whole = directory / _INDEX, directory / _WHOLE
    if index.is_file():
        files = [directory / name for name in sorted(set(_weight_map(index).values()))]
    elif whole.is_file():
        files = [whole]
    else:
        files = sorted(directory.glob("*.safetensors"))
    missing = [path.name for path in files if not path.is_file()]
    if missing or not files:
        what = f"weight file {missing[0]}" if missing else "a .safetensors file"
        hint = "fetch what is missing"
        if not files and any(directory.glob("*.bin")):
            hint = "pickled weights (.bin) are never read, save them as safetensors"
        raise ModelRefused(f"{directory} lacks {what}", hint=hint, path=str(directory))
    return files


def tensor_files(directory: Path) -> dict[str, Path]:
    """The file of each tensor, by the names that the files use.

    Where several files hold one, its index says which counts. Pure. Raises ModelRefused: see
    `weight_files`; a file is not whole; two files hold a tensor and no index decides.
    """
    index = directory / _INDEX
    assigned = _weight_map(index) if index.is_file() else {}
    found: dict[str, Path] = {}
    for path in weight_files(directory):
        with opened_weights(path) as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                if assigned.get(name, path.name) != path.name:
                    continue
                if name in found:
                    pair = f"{found[name].name} and {path.name}"
                    raise ModelRefused(f"tensor {name!r} is in {pair}", path=str(directory))
                found[name] = path
    return found


@contextmanager
def opened_weights(path: Path) -> Iterator[Any]:
    """An open safetensors file. Raises ModelRefused if it is cut, or none."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except SafetensorError as error:
        message, hint = f"weight file {path} cannot be read: {error}", "fetch it again"
        with path.open("rb") as start:
            if start.read(len(_POINTER)) == _POINTER:
                message = f"weight file {path} is a pointer of Git LFS, not the weights"
                hint = "run `git lfs pull` where it was cloned"
        raise ModelRefused(message, hint=hint, path=str(path)) from error


def _weight_map(index: Path) -> Mapping[str, str]:
    """The file of each tensor as an index says it. Raises ModelRefused. Pure."""
    try:
        found = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
            raise TypeError("weight_map names no files")
    except (ValueError, KeyError, TypeError) as error:
        message = f"{index} is no index of weight files: {error}"
        raise ModelRefused(message, hint="fetch it again", path=str(index)) from error
    return found
