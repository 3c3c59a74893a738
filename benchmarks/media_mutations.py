"""Ways to harm a file: each takes bytes and a generator of chance, and gives other bytes."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from random import Random

__all__ = ["MUTATIONS", "mutated"]

_HEAD_BYTES = 160
_PNG = b"\x89PNG\r\n\x1a\n"
_LIES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)
_SIDES = (48, 64, 47, 63)


def mutated(content: bytes, others: list[bytes], rng: Random) -> tuple[str, bytes]:
    """A harmed copy of `content` and the names of what was done, one to three things.

    Checksums of a PNG are mended half of the time, so that harm gets past them.
    """
    names: list[str] = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        name = rng.choice(list(MUTATIONS))
        content = MUTATIONS[name](content, others, rng)
        names.append(name)
    if content.startswith(_PNG) and rng.random() < 0.5:
        content = _mended(content)
        names.append("mend")
    return "+".join(names), content


def _cut(content: bytes, _: list[bytes], rng: Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _flip(content: bytes, _: list[bytes], rng: Random) -> bytes:
    return _flipped(content, len(content), rng)


def _flip_head(content: bytes, _: list[bytes], rng: Random) -> bytes:
    return _flipped(content, min(len(content), _HEAD_BYTES), rng)


def _flipped(content: bytes, end: int, rng: Random) -> bytes:
    harmed = bytearray(content)
    for _ in range(rng.randint(1, 16) if end else 0):
        harmed[rng.randrange(end)] ^= 1 << rng.randrange(8)
    return bytes(harmed)


def _zero(content: bytes, _: list[bytes], rng: Random) -> bytes:
    start, end = _block(content, rng)
    return content[:start] + bytes(end - start) + content[end:]


def _noise(content: bytes, _: list[bytes], rng: Random) -> bytes:
    start, end = _block(content, rng)
    return content[:start] + rng.randbytes(end - start) + content[end:]


def _remove(content: bytes, _: list[bytes], rng: Random) -> bytes:
    start, end = _block(content, rng)
    return content[:start] + content[end:]


def _repeat(content: bytes, _: list[bytes], rng: Random) -> bytes:
    start, end = _block(content, rng)
    return content[:end] + content[start:end] * rng.randint(1, 40) + content[end:]


def _splice(content: bytes, others: list[bytes], rng: Random) -> bytes:
    other = rng.choice(others)
    start, end = _block(other, rng)
    at = rng.randrange(len(content) + 1)
    return content[:at] + other[start:end] + content[at + (end - start) * rng.randrange(2) :]


def _swap_tail(content: bytes, others: list[bytes], rng: Random) -> bytes:
    other = rng.choice(others)
    return content[: rng.randrange(len(content) + 1)] + other[rng.randrange(len(other)) :]


def _lie(content: bytes, _: list[bytes], rng: Random) -> bytes:
    """A number of one, two or four bytes becomes another, or nearly the same."""
    size = rng.choice((1, 2, 4))
    if len(content) < size:
        return content
    order = rng.choice(("big", "little"))
    end = rng.choice((min(len(content), _HEAD_BYTES), len(content)))
    at = rng.randrange(max(1, end - size + 1))
    near = int.from_bytes(content[at : at + size], order) + rng.choice((-1, 1))  # type: ignore[arg-type]
    value = rng.choice((*_LIES, near)) & ((1 << 8 * size) - 1)
    return content[:at] + value.to_bytes(size, order) + content[at + size :]  # type: ignore[arg-type]


def _lie_sides(content: bytes, _: list[bytes], rng: Random) -> bytes:
    """A number that may be a side becomes a side that the pixels have not."""
    side, kind = rng.choice(_SIDES), rng.choice((">H", "<H", ">I", "<I"))
    places = [
        at for at in range(len(content)) if content.startswith(struct.pack(kind, side), at)
    ]
    if not places:
        return content
    most = 0xFFFF if kind.endswith("H") else 0xFFFFFFFF
    lie = rng.choice((0, 1, side - 1, side + 1, 2 * side, 5000, 20_000, 65_500, most)) & most
    at = rng.choice(places)
    return content[:at] + struct.pack(kind, lie) + content[at + struct.calcsize(kind) :]


def _block(content: bytes, rng: Random) -> tuple[int, int]:
    """Half-open range of at most a quarter of the file."""
    start = rng.randrange(len(content) + 1)
    return start, min(len(content), start + rng.randint(1, max(1, len(content) // 4)))


def _mended(content: bytes) -> bytes:
    """A PNG whose checksums fit, as far as its chunks can be followed."""
    pieces, at = [content[:8]], 8
    while at + 12 <= len(content):
        end = at + 12 + int.from_bytes(content[at : at + 4], "big")
        if end > len(content):
            break
        body = content[at + 4 : end - 4]
        pieces.append(content[at : at + 4] + body + struct.pack(">I", zlib.crc32(body)))
        at = end
    return b"".join(pieces) + content[at:]


MUTATIONS: Mapping[str, Callable[[bytes, list[bytes], Random], bytes]] = {
    "cut": _cut,
    "flip": _flip,
    "flip head": _flip_head,
    "zero": _zero,
    "noise": _noise,
    "remove": _remove,
    "repeat": _repeat,
    "splice": _splice,
    "swap tail": _swap_tail,
    "lie": _lie,
    "lie about sides": _lie_sides,
}
"""Ways to harm a file, by name."""
