"""A child's end of what it shares with its parent: the line, and two files without names."""

from __future__ import annotations

import os
import socket

import numpy as np
from numpy.typing import NDArray

from mmserve.vision.children.line import Line

__all__ = ["Desk"]


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

    def content(self, num_bytes: int) -> bytes:
        """The running job's file. Pure."""
        return os.pread(self._content_fd, num_bytes, 0)

    def put(self, pixels: NDArray[np.uint8], offset: int = 0) -> list[int]:
        """Their shape. Changes: the pixels file, from byte `offset` on."""
        view = np.ascontiguousarray(pixels).data.cast("B")
        done = 0
        while done < len(view):
            done += os.pwrite(self._pixels_fd, view[done:], offset + done)
        return list(pixels.shape)
