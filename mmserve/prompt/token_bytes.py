"""The exact bytes that a token of a vocabulary stands for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["byte_alphabet", "piece_rule"]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_alphabet() -> dict[str, int]:
    """The byte for each character by which byte-level BPE writes one. Pure.

    Source: Language Models are Unsupervised Multitask Learners (GPT-2, 2019), section 2.2.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(value): value for value in printable}
    others = (value for value in range(256) if value not in printable)
    alphabet.update({chr(256 + order): value for order, value in enumerate(others)})
    return alphabet


_ALPHABET = byte_alphabet()


def _byte_level(token: str) -> bytes:
    if all(character in _ALPHABET for character in token):
        return bytes(_ALPHABET[character] for character in token)
    return token.encode()


def _sentencepiece(mark: str, *, has_byte_tokens: bool) -> Callable[[str], bytes]:
    def rule(token: str) -> bytes:
        byte = _BYTE_TOKEN.fullmatch(token) if has_byte_tokens else None
        return bytes([int(byte[1], 16)]) if byte else token.replace(mark, " ").encode()

    return rule


def _wordpiece(prefix: str) -> Callable[[str], bytes]:
    def rule(token: str) -> bytes:
        return (
            token.removeprefix(prefix) if token.startswith(prefix) else f" {token}"
        ).encode()

    return rule


def _steps(spec: Any) -> Iterator[Mapping[str, Any]]:  # noqa: ANN401 - parsed JSON
    """The steps of a decoder or pre-tokenizer, sequences unfolded."""
    if isinstance(spec, Mapping):
        yield spec
        for key in ("decoders", "pretokenizers"):
            for step in spec.get(key, ()):
                yield from _steps(step)


def piece_rule(spec: Mapping[str, Any]) -> Callable[[str], bytes]:
    """The rule from a token's spelling to its bytes, for the model part of a `tokenizer.json`.

    Byte-level alphabets, sentencepiece marks with byte fallback and wordpiece are known; other
    vocabularies spell their text as it is. Added tokens do not go through the rule. Pure.
    """
    steps = [*_steps(spec.get("decoder")), *_steps(spec.get("pre_tokenizer"))]
    kinds = {step["type"]: step for step in reversed(steps)}
    if "ByteLevel" in kinds:
        return _byte_level
    if "WordPiece" in kinds:
        return _wordpiece(kinds["WordPiece"]["prefix"])
    mark = "▁" if "Replace" in kinds else None
    if "Metaspace" in kinds:
        mark = kinds["Metaspace"]["replacement"]
    has_byte_tokens = "ByteFallback" in kinds or bool(spec["model"].get("byte_fallback"))
    if mark or has_byte_tokens:
        return _sentencepiece(mark or "▁", has_byte_tokens=has_byte_tokens)
    return str.encode
