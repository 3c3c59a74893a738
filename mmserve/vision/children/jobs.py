"""What a child does: one job at a time, each answered once.

    job                      answers
    header  name             header
    picture header           shape; pixels in the pixels file
    clip    config           header
    frames  clip numbers     frame ... (see `clips`), done

A refusal, a lack of memory and any other failure are answers too.
"""

from __future__ import annotations

import os
import resource
import socket
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import AvifImagePlugin

from mmserve.core import MediaRefused
from mmserve.vision.children.line import Line, Message
from mmserve.vision.image import decode_picture
from mmserve.vision.probe import library_header

__all__ = ["Desk"]

_STATUS = Path("/proc/self/statm")
_MOST_THREADS = 4
_LONGEST_TRACE = 2000


class Desk:
    """A child's end of everything.

    Args:
        end: the socket to the parent.
        content_fd: file in which a job's content stands, from its start.
        pixels_fd: file in which pixels are put.
    """

    def __init__(self, end: socket.socket, content_fd: int, pixels_fd: int) -> None:
        self.line = Line(end)
        self.pixels_fd = pixels_fd
        self._content_fd = content_fd
        self._jobs: dict[str, Callable[[bytes, Message], Message]] = {
            "header": self._header,
            "picture": self._picture,
            "clip": self._clip_job,
            "frames": self._clip_job,
        }

    def serve(self) -> None:
        """Answer jobs until the parent is gone, or one took all memory that it may."""
        AvifImagePlugin.DEFAULT_MAX_THREADS = _MOST_THREADS
        is_sound = True
        while is_sound:
            try:
                job = self.line.receive()
            except EOFError:
                return
            if job is not None and "job" in job:  # else late words about the job before
                is_sound = self._answer(job)

    def put(self, pixels: NDArray[np.uint8], offset: int = 0) -> list[int]:
        """Changes: the pixels file, from `offset` on. Returns the shape."""
        view = np.ascontiguousarray(pixels).data.cast("B")
        done = 0
        while done < len(view):
            done += os.pwrite(self.pixels_fd, view[done:], offset + done)
        return list(pixels.shape)

    def _answer(self, job: Message) -> bool:
        """Do a job and answer it; whether the process is fit for another."""
        _limit(job["memory_bytes"], job["cpu_s"])
        is_sound = True
        try:
            answer = self._jobs[job["job"]](self._content(job["num_bytes"]), job)
        except MediaRefused as error:
            answer = {"refused": error.message, "hint": error.hint, "fields": error.fields}
        except MemoryError:
            is_sound, answer = False, {"lacked": "memory"}
        except Exception:  # noqa: BLE001 - told to the parent, which tells whoever waits
            answer = {"failed": traceback.format_exc()[-_LONGEST_TRACE:]}
        finally:
            _unlimit()
        self.line.send(answer)
        return is_sound

    def _content(self, num_bytes: int) -> bytes:
        return os.pread(self._content_fd, num_bytes, 0)

    def _header(self, content: bytes, job: Message) -> Message:
        return {"header": library_header(content, job["name"])}

    def _picture(self, content: bytes, job: Message) -> Message:
        return {"shape": self.put(decode_picture(content, job["header"]))}

    def _clip_job(self, content: bytes, job: Message) -> Message:
        from mmserve.vision.children import clips  # noqa: PLC0415  a child may never see a clip

        if job["job"] == "clip":
            return clips.header(content, job)
        return clips.frames(self, content, job)


def _limit(memory_bytes: int, cpu_s: int) -> None:
    """Changes: what this process may take from now on, beyond what it has.

    The limit on processor time ends a child whose parent died while a decoder hung.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    spent_s = int(used.ru_utime + used.ru_stime) + 1
    _set(resource.RLIMIT_CPU, spent_s + cpu_s)
    if _STATUS.exists():
        num_pages = int(_STATUS.read_text().split()[0])
        _set(resource.RLIMIT_AS, num_pages * resource.getpagesize() + memory_bytes)


def _unlimit() -> None:
    _set(resource.RLIMIT_AS, resource.RLIM_INFINITY)
    _set(resource.RLIMIT_CPU, resource.RLIM_INFINITY)


def _set(kind: int, soft: int) -> None:
    """Changes: the soft limit, as far as the hard one lets it."""
    _, hard = resource.getrlimit(kind)
    is_over = hard != resource.RLIM_INFINITY and (soft == resource.RLIM_INFINITY or soft > hard)
    resource.setrlimit(kind, (hard if is_over else soft, hard))
