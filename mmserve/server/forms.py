"""A `multipart/form-data` body as its fields."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from mmserve.core import BadRequest

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

__all__ = ["FormField", "parse_form"]

_MOST_FIELDS = 32
_MAX_NAME = 64
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # its words quote bodies
_HINT = "send multipart/form-data, as the openai client's files.create does"


@dataclass(frozen=True, slots=True)
class FormField:
    """One field; `filename` is None for one that is not a file."""

    content: bytes = field(repr=False)
    filename: str | None = None


def parse_form(raw: bytes, content_type: str) -> dict[str, FormField]:
    """The fields of a whole body by name. Pure.

    Raises BadRequest if it is cut off, is no form, or has a name twice. Cost: one copy.
    """
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not boundary:
        message = "the content type is not multipart/form-data with a boundary"
        raise BadRequest(message, reason="form", hint=_HINT)
    reader = _Reader()
    try:
        parser = MultipartParser(boundary, reader.callbacks())
        parser.write(raw)
        parser.finalize()
    except FormParserError as error:
        raise _broken(str(error)[:100]) from None
    if not reader.is_whole:
        raise _broken("its last boundary is missing")
    fields: dict[str, FormField] = {}
    for name, value in reader.fields():
        if name in fields:
            message = f"the form has the field {name} twice"
            raise BadRequest(message, field=name, reason="conflict")
        fields[name] = value
    return fields


class _Reader:
    """Collects what the parser finds. Mutable."""

    def __init__(self) -> None:
        self.is_whole = False
        self._parts: list[tuple[dict[bytes, bytes], bytearray]] = []
        self._name = b""
        self._value = b""

    def callbacks(self) -> MultipartCallbacks:
        """What the parser calls, by its names."""
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._header_name,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_part_data": self._data,
            "on_end": self._end,
        }

    def fields(self) -> Iterator[tuple[str, FormField]]:
        """Name and field of each part, in order. Raises BadRequest for one without a name."""
        for headers, content in self._parts:
            kind, options = parse_options_header(headers.get(b"content-disposition", b""))
            if kind != b"form-data" or b"name" not in options:
                raise _broken("a part has no name")
            try:
                name = options[b"name"].decode()[:_MAX_NAME]
                filename = options[b"filename"].decode() if b"filename" in options else None
            except UnicodeDecodeError:
                raise _broken("a name is not UTF-8") from None
            yield name, FormField(bytes(content), filename)

    def _begin(self) -> None:
        if len(self._parts) == _MOST_FIELDS:
            raise _broken(f"it has more than {_MOST_FIELDS} fields")
        self._parts.append(({}, bytearray()))

    def _header_name(self, raw: bytes, start: int, end: int) -> None:
        self._name += raw[start:end]

    def _header_value(self, raw: bytes, start: int, end: int) -> None:
        self._value += raw[start:end]

    def _header_end(self) -> None:
        self._parts[-1][0][self._name.lower()] = self._value
        self._name = self._value = b""

    def _data(self, raw: bytes, start: int, end: int) -> None:
        self._parts[-1][1].extend(memoryview(raw)[start:end])  # one piece, or a byte each

    def _end(self) -> None:
        self.is_whole = True


def _broken(reason: str) -> BadRequest:
    message = f"the request body is not a valid form: {reason}"
    return BadRequest(message, reason="form", hint=_HINT)
