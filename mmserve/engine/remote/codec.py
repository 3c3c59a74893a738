"""Values as bytes and back: frozen dataclasses of `core` and `messages` by name, in msgpack.

    None, bool, number, text, bytes     as they are
    tuple                               an array
    everything else                     a map with the tag "$": a class's name, or a sign below

Only classes listed here are ever built, and fields that have their default are left out.
Bytes of `LARGE_BYTES` and more stay out of the text: the writer gets them to put elsewhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from numbers import Integral, Real
from typing import Any, cast

import msgspec

from mmserve import core
from mmserve.core import MmserveError
from mmserve.engine.remote.messages import MESSAGES, Message

__all__ = ["LARGE_BYTES", "Blobs", "decode", "encode"]

LARGE_BYTES = 256 * 1024

_TAG = "$"
_LIST, _DICT, _BLOB, _INT, _TEXT, _ERROR, _SYSTEM = "[]", "{}", "blob", "int", "text", "!", "os"
_BARE = frozenset({type(None), bool, int, float})
_INNER = frozenset({*_BARE, str, bytes})
_ALIKE: tuple[tuple[Any, Callable[[Any], object]], ...] = (
    (str, str.__str__), (bytearray | memoryview, bytes), (Integral, int), (Real, float)
)  # fmt: skip
"""Kinds that arrive as something plainer, such as numbers of numpy."""
_LOW, _HIGH = -(2**63), 2**64 - 1
_LONGEST_FIELD = 300

Read = Callable[[int, int], bytes]


def _classes(base: type | None) -> dict[str, type[Any]]:
    """Classes that `core` gives away by name: its dataclasses, or what descends from `base`."""
    named = {name: getattr(core, name) for name in core.__all__}
    return {
        name: kind
        for name, kind in named.items()
        if isinstance(kind, type)
        and (is_dataclass(kind) if base is None else issubclass(kind, base))
    }


_VALUES: Mapping[str, type[Any]] = _classes(None) | {kind.__name__: kind for kind in MESSAGES}
_ERRORS: Mapping[str, type[MmserveError]] = _classes(MmserveError)
_NAMES = {kind: name for name, kind in _VALUES.items()}
_FIELDS: Mapping[type[Any], tuple[tuple[str, object], ...]] = {
    kind: tuple((spec.name, spec.default) for spec in fields(kind) if spec.init)
    for kind in _NAMES
}


@dataclasses.dataclass(slots=True)
class Blobs:
    """Large bytes of a frame, in order; its texts know them by place and size. Mutable.

    What several messages hold, such as the picture of many questions, goes in once.
    """

    contents: list[bytes] = dataclasses.field(default_factory=list)
    num_bytes: int = 0
    _places: dict[int, int] = dataclasses.field(default_factory=dict)
    """Where objects stand, by id: they live as long as `contents`."""

    def add(self, content: bytes) -> list[int]:
        """Take one in; gives its place and size. Changes: the contents."""
        place = self._places.get(id(content))
        if place is None:
            place = self._places[id(content)] = self.num_bytes
            self.contents.append(content)
            self.num_bytes += len(content)
        return [place, len(content)]

    def take_back(self, num_contents: int) -> None:
        """Forget all but the first so many. Changes: the contents."""
        for content in self.contents[num_contents:]:
            del self._places[id(content)]
            self.num_bytes -= len(content)
        del self.contents[num_contents:]


def encode(message: Message, blobs: Blobs) -> bytes:
    """A message as msgpack. Changes: `blobs` gets its large bytes.

    Raises TypeError for a value that does not travel, and then leaves `blobs` as it was.
    """
    num_before = len(blobs.contents)
    try:
        return msgspec.msgpack.encode(_plain(message, blobs))
    except BaseException:
        blobs.take_back(num_before)
        raise


def decode(text: bytes | memoryview, read: Read) -> Message:
    """A message from msgpack; `read` gives large bytes by place and size.

    Raises ValueError or TypeError for what `encode` never writes. Pure.
    """
    value = _value(msgspec.msgpack.decode(text), read)
    if not isinstance(value, MESSAGES):
        raise TypeError(f"a {type(value).__name__} is no message")
    return value


# --- writing -------------------------------------------------------------------------------


def _plain(value: Any, blobs: Blobs) -> Any:  # noqa: ANN401 - any value of any field
    writer = _WRITERS.get(type(value))
    if writer is not None:
        return writer(value, blobs)
    name = _NAMES.get(type(value))
    if name is not None:
        return _plain_fields(value, name, blobs)
    return _plain_other(value, blobs)


def _plain_fields(value: object, name: str, blobs: Blobs) -> dict[str, Any]:
    plain: dict[str, Any] = {_TAG: name}
    for field, default in _FIELDS[type(value)]:
        held = getattr(value, field)
        if held is not default or default is MISSING:
            plain[field] = _plain(held, blobs)
    return plain


def _plain_other(value: object, blobs: Blobs) -> Any:  # noqa: ANN401 - as above
    if isinstance(value, MmserveError):
        return _plain_error(value, blobs)
    if isinstance(value, OSError):
        words, path = str(value.strerror or value), value.filename
        args = (value.errno, words, None if path is None else str(path))
        return {_TAG: _SYSTEM, "args": _plain_items(args, blobs)}
    for kind, bare in _ALIKE:
        if isinstance(value, kind):
            return _plain(bare(value), blobs)
    raise TypeError(f"a {type(value).__name__} does not travel between processes")


def _plain_error(error: MmserveError, blobs: Blobs) -> dict[str, Any]:
    kind = next(kind for kind in type(error).__mro__ if kind.__name__ in _ERRORS)
    named = []
    for field, held in error.fields.items():
        try:
            named.append([field, _plain(held, blobs)])
        except TypeError:  # an error must arrive, whatever it tells of
            named.append([field, _plain(str(held)[:_LONGEST_FIELD], blobs)])
    return {
        _TAG: _ERROR,
        "kind": kind.__name__,
        "message": _plain(error.message, blobs),
        "hint": _plain(error.hint, blobs),
        "fields": named,
    }


def _as_it_is(value: object, _blobs: Blobs) -> object:
    return value


def _plain_int(value: int, _blobs: Blobs) -> Any:  # noqa: ANN401 - as above
    return value if _LOW <= value <= _HIGH else {_TAG: _INT, "digits": hex(value)}


def _plain_text(value: str, _blobs: Blobs) -> Any:  # noqa: ANN401 - as above
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:  # half a surrogate pair, which msgpack has no form for
        return {_TAG: _TEXT, "bytes": value.encode("utf-8", "surrogatepass")}
    return value


def _plain_bytes(value: bytes, blobs: Blobs) -> Any:  # noqa: ANN401 - as above
    return value if len(value) < LARGE_BYTES else {_TAG: _BLOB, "place": blobs.add(value)}


def _plain_items(value: tuple[Any, ...] | list[Any], blobs: Blobs) -> list[Any]:
    kinds = set(map(type, value))
    if kinds <= _BARE and (int not in kinds or _fits(value)):
        return list(value)  # token ids come in thousands
    return [_plain(item, blobs) for item in value]


def _fits(numbers: tuple[Any, ...] | list[Any]) -> bool:
    whole = [number for number in numbers if type(number) is int]
    return min(whole) >= _LOW and max(whole) <= _HIGH


def _plain_list(value: list[Any], blobs: Blobs) -> dict[str, Any]:
    return {_TAG: _LIST, "items": _plain_items(value, blobs)}


def _plain_dict(value: dict[Any, Any], blobs: Blobs) -> dict[str, Any]:
    pairs = [[_plain(key, blobs), _plain(held, blobs)] for key, held in value.items()]
    return {_TAG: _DICT, "pairs": pairs}


_WRITERS: Mapping[type[Any], Callable[[Any, Blobs], Any]] = {
    type(None): _as_it_is,
    bool: _as_it_is,
    float: _as_it_is,
    int: _plain_int,
    str: _plain_text,
    bytes: _plain_bytes,
    tuple: _plain_items,
    list: _plain_list,
    dict: _plain_dict,
}


# --- reading -------------------------------------------------------------------------------


def _value(plain: Any, read: Read) -> Any:  # noqa: ANN401 - as above
    if isinstance(plain, list):
        if set(map(type, plain)) <= _INNER:
            return tuple(plain)
        return tuple(_value(item, read) for item in plain)
    if not isinstance(plain, dict):
        return plain
    tag = plain.pop(_TAG, None)
    reader = _READERS.get(tag)
    if reader is not None:
        return reader(plain, read)
    kind = _VALUES.get(tag) if isinstance(tag, str) else None
    if kind is None:
        raise ValueError(f"no value is called {tag!r:.100}")
    return kind(**{field: _value(held, read) for field, held in plain.items()})


def _read_error(plain: dict[str, Any], read: Read) -> MmserveError:
    kind = _ERRORS.get(plain["kind"])
    if kind is None:
        raise ValueError(f"no error is called {plain['kind']!r:.100}")
    named = {field: _value(held, read) for field, held in plain["fields"]}
    return kind(_value(plain["message"], read), hint=_value(plain["hint"], read), **named)


_READERS: Mapping[Any, Callable[[dict[str, Any], Read], Any]] = {
    _LIST: lambda plain, read: list(_value(plain["items"], read)),
    _DICT: lambda plain, read: {
        _value(key, read): _value(held, read) for key, held in plain["pairs"]
    },
    _BLOB: lambda plain, read: read(*cast("list[int]", plain["place"])),
    _INT: lambda plain, _read: int(plain["digits"], 16),
    _TEXT: lambda plain, _read: plain["bytes"].decode("utf-8", "surrogatepass"),
    _ERROR: _read_error,
    _SYSTEM: lambda plain, read: OSError(*_value(plain["args"], read)),
}
