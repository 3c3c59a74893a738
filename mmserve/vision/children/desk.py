"""A child's end of what it shares with its parent: the line, and two files without names."""

from __future__ import annotations

import mmap
import os
import socket
from math import prod

import numpy as np
from numpy.typing import NDArray

from mmserve.vision.children.line import Line

__all__ = ["Desk"]

_KEPT_BYTES = 16 << 20


class Desk:
    """Where jobs come in and results go out.

    Args:
        end: the socket to the parent.
        content_fd: file in which a job's content stands, from its start.
        pixels_fd: file in which pixels are put.
    """

    def __init__(self, end: socket.socket, content_fd: int, pixels_fd: int) -> None:
        self.line = Line(end)
        self._content_fd = content_fd
        self._pixels_fd = pixels_fd
        os.ftruncate(pixels_fd, _KEPT_BYTES)
        self._kept = mmap.mmap(pixels_fd, _KEPT_BYTES)

    def content(self, num_bytes: int) -> bytes:
        """The running job's file. Pure."""
        return os.pread(self._content_fd, num_bytes, 0)

    def room(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """Pixels uint8 `shape` to fill, at the start of the pixels file. Changes: the file.

        16 MiB stay mapped from one picture to the next, which saves their page faults. Raises
        MemoryError.
        """
        num_bytes = prod(shape)
        size = max(num_bytes, _KEPT_BYTES)
        if os.fstat(self._pixels_fd).st_size < size:
            os.ftruncate(self._pixels_fd, size)
        try:
            mapped = self._kept if size == _KEPT_BYTES else mmap.mmap(self._pixels_fd, size)
        except OSError as error:
            raise MemoryError from error
        return np.frombuffer(mapped, np.uint8, num_bytes).reshape(shape)

    def put(self, pixels: NDArray[np.uint8], offset: int = 0) -> list[int]:
        """Their shape. Changes: the pixels file, from byte `offset` on."""
        view = np.ascontiguousarray(pixels).data.cast("B")
        done = 0
        while done < len(view):
            done += os.pwrite(self._pixels_fd, view[done:], offset + done)
        return list(pixels.shape)
