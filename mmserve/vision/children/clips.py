"""Clip jobs of a child; apart, since they alone need a video library.

A pass over a clip, wishes joining while it runs:

    parent                              child
    frames, numbers wanted first   ->
                                   <-   frame number, shape, offset   (at most 2 not taken)
    took 1, numbers added          ->
                                   <-   at position                   (every second)
    numbers added                  ->
                                   <-   idle position                 (no wish from there on)
    numbers added, is_answer       ->                                 (may be none)
                                   <-   is_done
"""

from __future__ import annotations

from contextlib import closing
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from mmserve.vision.children.desk import Desk
from mmserve.vision.children.line import Message
from mmserve.vision.frames import decode_frames
from mmserve.vision.video import probe_clip
from mmserve.vision.wishes import Wishes

__all__ = ["frames", "header"]

_MOST_NOT_TAKEN = 2
_QUIET_S = 1.0


def header(content: bytes, job: Message) -> Message:
    """A clip's header. Raises MediaRefused. Pure."""
    return {"header": probe_clip(content, job["config"])}


def frames(desk: Desk, content: bytes, job: Message) -> Message:
    """Give wanted frames as they decode. Raises MediaRefused. Changes: the pixels file."""
    teller = _Pass(desk, Wishes(job["numbers"]))
    with closing(decode_frames(content, job["clip"], teller.next_wanted)) as found:
        for number, pixels in found:
            teller.give(number, pixels)
    return {"is_done": True}


class _Pass:
    """What the parent wants of a running pass, and what it was given."""

    def __init__(self, desk: Desk, wishes: Wishes) -> None:
        self._desk = desk
        self._wishes = wishes
        self._num_given = 0
        self._num_taken = 0
        self._told = monotonic()

    def next_wanted(self, position: int) -> int | None:
        """The lowest number wanted from `position` on; asks the parent before it says None."""
        while self._desk.line.has_message():
            self._hear()
        if monotonic() - self._told > _QUIET_S:
            self._tell({"at": position})
        wanted = self._wishes.next_from(position)
        if wanted is None:
            self._tell({"idle": position})
            while not self._hear():
                pass
            wanted = self._wishes.next_from(position)
        return wanted

    def give(self, number: int, pixels: NDArray[np.uint8]) -> None:
        """Put a frame into a place of the pixels file that the parent has emptied."""
        while self._num_given - self._num_taken >= _MOST_NOT_TAKEN:
            self._hear()
        offset = self._num_given % _MOST_NOT_TAKEN * pixels.nbytes
        shape = self._desk.put(pixels, offset)
        self._num_given += 1
        self._wishes.remove(number)
        self._tell({"frame": number, "shape": shape, "offset": offset})

    def _tell(self, message: Message) -> None:
        self._desk.line.send(message)
        self._told = monotonic()

    def _hear(self) -> bool:
        """Take one message; whether it answers `idle`. Raises EOFError without a parent."""
        message = self._desk.line.receive() or {}
        self._num_taken += message.get("took", 0)
        for number in message.get("numbers", ()):
            self._wishes.add(number)
        return "is_answer" in message
