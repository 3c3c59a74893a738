"""Facts of a checkpoint beside its weights: who it is, and which tokens end an answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmserve.core import ModelRefused
from mmserve.models import weight_files

__all__ = ["eos_token_ids", "fingerprint"]

_NUM_SAMPLES = 32
_SAMPLE_BYTES = 4096


def fingerprint(path: Path, config: Mapping[str, Any]) -> bytes:
    """16 bytes over the configuration and, of every weight file, its header, size and samples.

    Pure. Cost: reads some hundred KiB a file, so two finetunes that differ in a few tensors
    only may be taken for one if no sample falls into these.
    """
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps(config, sort_keys=True, default=str).encode())
    files = [path] if path.suffix == ".gguf" else weight_files(path)
    for file in files:
        _update(digest, file)
    return digest.digest()


def _update(digest: hashlib.blake2b, path: Path) -> None:
    size = path.stat().st_size
    digest.update(f"{path.name}:{size}:".encode())
    with path.open("rb") as file:
        header = int.from_bytes(file.read(8), "little") if path.suffix != ".gguf" else 0
        digest.update(file.read(min(header, size)))
        for i in range(_NUM_SAMPLES):
            file.seek(size * i // _NUM_SAMPLES)
            digest.update(file.read(_SAMPLE_BYTES))


def eos_token_ids(path: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    """Every token that the checkpoint's files name as an end, ascending.

    Pure. Raises ModelRefused: a file is no JSON, or names what is no token.
    """
    found: set[int] = set()
    for values in (_json(path / "generation_config.json"), config, config.get("text_config")):
        named = (values or {}).get("eos_token_id")
        ids = named if isinstance(named, list) else [] if named is None else [named]
        if not all(isinstance(one, int) for one in ids):
            message = f"eos_token_id is {named!r}, not the numbers of tokens"
            raise ModelRefused(message, path=str(path))
        found.update(ids)
    found.update(_tokenizer_eos(path))
    return tuple(sorted(found))


def _tokenizer_eos(path: Path) -> set[int]:
    token = _json(path / "tokenizer_config.json").get("eos_token")
    if isinstance(token, dict):
        token = token.get("content")
    added = _json(path / "tokenizer.json").get("added_tokens") or []
    return {int(entry["id"]) for entry in added if token and entry.get("content") == token}


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelRefused(f"{path} is not JSON: {error}", path=str(path)) from error
    return values if isinstance(values, dict) else {}
