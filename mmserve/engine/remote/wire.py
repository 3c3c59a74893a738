"""The socket between two processes: frames of messages, with a nameless file of large bytes.

    16 bytes: sizes of text and file     descriptor of the file, if it has any bytes
    text: an array of messages

The file lives in memory and belongs to whoever holds its descriptor: with the last holder it
is gone, however that one ended, and no name of it is left anywhere.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence

import msgspec

from mmserve.engine.remote.codec import Blobs, decode, encode
from mmserve.engine.remote.messages import Message

__all__ = ["Wire"]

_SIZES = struct.Struct("<QQ")
_FLAGS = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_MAX_FILES = 4
_TEXTS = msgspec.msgpack.Decoder(list[msgspec.Raw])

OnBad = Callable[[Message, Exception], None]


class Wire:
    """One end of the socket, whose owner it becomes. One reader; `send` from any thread."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._lock = threading.Lock()

    def send(self, messages: Sequence[Message], on_bad: OnBad | None = None) -> None:
        """Send messages as one frame; waits while the other side does not read.

        A message that cannot be written goes to `on_bad` in place of the frame. Raises OSError
        if the other side is gone, and TypeError for a bad message without `on_bad`.
        """
        blobs = Blobs()
        texts: list[msgspec.Raw] = []
        for message in messages:
            try:
                texts.append(msgspec.Raw(encode(message, blobs)))
            except Exception as error:
                if on_bad is None:
                    raise
                on_bad(message, error)
        text = msgspec.msgpack.encode(texts)
        sizes = _SIZES.pack(len(text), blobs.num_bytes)
        with self._lock:
            if blobs.num_bytes:
                with _written(blobs.contents) as file:
                    _send_with(self._end, sizes, file)
            else:
                self._end.sendall(sizes)
            self._end.sendall(text)

    def receive(self) -> list[Message]:
        """The messages of the next frame; waits for it.

        Raises EOFError when the other side is gone, ValueError or TypeError for nonsense.
        """
        sizes, file = self._sizes()
        try:
            num_text_bytes, num_file_bytes = _SIZES.unpack(sizes)
            text = self._exactly(num_text_bytes)
            if num_file_bytes and file is None:
                raise ValueError("a frame lacks its file")

            found: dict[tuple[int, int], bytes] = {}

            def read(place: int, num_bytes: int) -> bytes:
                key = place, num_bytes
                if key not in found:
                    found[key] = _read(-1 if file is None else file, place, num_bytes)
                return found[key]

            return [decode(memoryview(raw), read) for raw in _TEXTS.decode(text)]
        finally:
            if file is not None:
                os.close(file)

    def close(self) -> None:
        """End the connection; a reader that waits hears it. Idempotent."""
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)

    def free(self) -> None:
        """Give the descriptor back; nobody may read or send any more. Idempotent."""
        self._end.close()

    def _sizes(self) -> tuple[bytes, int | None]:
        """The head of a frame, and the descriptor that came with it."""
        found, files = b"", array.array("i")
        while len(found) < _SIZES.size:
            try:
                piece, given, _, _ = socket.recv_fds(
                    self._end, _SIZES.size - len(found), _MAX_FILES, _FLAGS
                )
            except OSError as error:
                raise EOFError(str(error)) from error
            if not piece:
                raise EOFError("the other side is gone")
            found += piece
            files.extend(given)
        for file in files:
            fcntl.fcntl(file, fcntl.F_SETFD, fcntl.FD_CLOEXEC)  # where the flag does not exist
        for file in files[1:]:
            os.close(file)
        return found, files[0] if files else None

    def _exactly(self, num_bytes: int) -> bytearray:
        text = bytearray(num_bytes)
        view, done = memoryview(text), 0
        while done < num_bytes:
            try:
                num_read = self._end.recv_into(view[done:])
            except OSError as error:
                raise EOFError(str(error)) from error
            if not num_read:
                raise EOFError("the other side is gone")
            done += num_read
        return text


def _send_with(end: socket.socket, sizes: bytes, file: int) -> None:
    """Send the head of a frame together with a descriptor, which belongs to its first byte."""
    num_sent = socket.send_fds(end, [sizes], [file])
    end.sendall(sizes[num_sent:])


@contextlib.contextmanager
def _written(contents: Sequence[bytes]) -> Iterator[int]:
    """A nameless file of these bytes, closed after the block; in memory where that exists."""
    with contextlib.ExitStack() as opened:
        try:
            file = os.memfd_create("mmserve-media")
            opened.callback(os.close, file)
        except (AttributeError, OSError):
            file = opened.enter_context(tempfile.TemporaryFile()).fileno()
        for content in contents:
            view = memoryview(content)
            while view:
                view = view[os.write(file, view) :]
        yield file


def _read(file: int, place: int, num_bytes: int) -> bytes:
    pieces = []
    while num_bytes:
        piece = os.pread(file, num_bytes, place)
        if not piece:
            raise ValueError("a file of large bytes is too short")
        pieces.append(piece)
        place += len(piece)
        num_bytes -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
