"""Loads a tokenizer from a model's directory or from a `.gguf` file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from mmserve.core import ModelRefused
from mmserve.prompt.tokenizer import Tokenizer

__all__ = ["load_tokenizer", "read_json"]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or {} if there is no such file. Raises ModelRefused."""
    if not path.is_file():
        return {}
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelRefused(f"{path.name} is not JSON: {error}", file=path.name) from None
    if not isinstance(loaded, dict):
        raise ModelRefused(f"{path.name} does not hold a JSON object", file=path.name)
    return loaded


def load_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer of a model's directory, or of one `.gguf` file.

    `tokenizer.json` is read as it is, with the special tokens that `tokenizer_config.json` and
    `special_tokens_map.json` name. Without it, transformers converts what is there (slow).

    Raises:
        ModelRefused: nothing there is a tokenizer.
    """
    if not (directory / "tokenizer.json").is_file():
        return _through_transformers(directory)
    try:
        backend = Backend.from_file(str(directory / "tokenizer.json"))
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception
        raise ModelRefused(f"tokenizer.json cannot be read: {error}") from None
    config = read_json(directory / "tokenizer_config.json")
    _add_missing(backend, config)
    named = read_json(directory / "special_tokens_map.json")
    special = {**_special_names(named), **_special_names(config)}
    return Tokenizer(backend, special_tokens=special, adds_bos=config.get("add_bos_token"))


def _spelling(value: Any) -> str | None:  # noqa: ANN401 - parsed JSON
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _special_names(config: Mapping[str, Any]) -> dict[str, str]:
    """Spelling by role name: `bos_token`, `image_token`, and lists numbered."""
    found: dict[str, str] = {}
    extra = config.get("extra_special_tokens")
    entries = {**config, **(extra if isinstance(extra, Mapping) else {})}
    for name, value in entries.items():
        if isinstance(value, list) and name.endswith("special_tokens"):
            for order, one in enumerate(value):
                if text := _spelling(one):
                    found[f"{name}_{order}"] = text
        elif name.endswith("_token") and (text := _spelling(value)):
            found[name] = text
    return found


def _add_missing(backend: Backend, config: Mapping[str, Any]) -> None:
    """Adds tokens that only the configuration lists, if they get the ids it says."""
    listed = config.get("added_tokens_decoder", {})
    for token_id, entry in sorted(listed.items(), key=lambda item: int(item[0])):
        known = backend.token_to_id(entry["content"])
        if known is None and int(token_id) == backend.get_vocab_size(with_added_tokens=True):
            flags = {
                name: bool(entry.get(name, False))
                for name in ("single_word", "lstrip", "rstrip", "normalized", "special")
            }
            backend.add_tokens([AddedToken(entry["content"], **flags)])


def _through_transformers(path: Path) -> Tokenizer:
    from transformers import AutoTokenizer  # noqa: PLC0415 - slow to import, rarely needed

    is_gguf = path.suffix == ".gguf"
    folder, extra = (path.parent, {"gguf_file": path.name}) if is_gguf else (path, {})
    try:
        loaded = AutoTokenizer.from_pretrained(str(folder), **extra)
        backend = loaded.backend_tokenizer
    except Exception as error:  # noqa: BLE001 - anything a foreign file can make it raise
        raise ModelRefused(f"no tokenizer can be read from {path.name}: {error}") from None
    special = {
        name: text
        for name, value in loaded.special_tokens_map.items()
        if (text := _spelling(value if isinstance(value, str | Mapping) else str(value)))
    }
    template = loaded.chat_template if isinstance(loaded.chat_template, str) else None
    return Tokenizer(
        backend,
        special_tokens=special,
        adds_bos=getattr(loaded, "add_bos_token", None),
        chat_template=template,
    )
