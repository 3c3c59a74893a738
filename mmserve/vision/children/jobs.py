"""What a child does: one job at a time, each answered once.

    job                      answers
    header  name             header
    picture header           shape; pixels in the pixels file
    clip    config           header
    frames  clip numbers     frame ... (see `clips`), is_done

A refusal, a lack of memory and any other failure are answers too.
"""

from __future__ import annotations

import resource
import traceback
from collections.abc import Callable
from pathlib import Path

from PIL import AvifImagePlugin

from mmserve.core import MediaRefused
from mmserve.vision.children.desk import Desk
from mmserve.vision.children.line import Message
from mmserve.vision.image import decode_picture
from mmserve.vision.probe import library_header

__all__ = ["serve"]

_STATUS = Path("/proc/self/statm")
_MOST_THREADS = 4
_LONGEST_TRACE = 1500


def serve(desk: Desk) -> None:
    """Answer jobs until the parent is gone, or one took all memory that it may."""
    AvifImagePlugin.DEFAULT_MAX_THREADS = _MOST_THREADS
    is_sound = True
    while is_sound:
        try:
            job = desk.line.receive()
        except EOFError:
            return
        if job is not None and "job" in job:  # else late words about the job before
            is_sound = _answer(desk, job)


def _answer(desk: Desk, job: Message) -> bool:
    """Do a job and answer it; whether the process is fit for another."""
    _limit(job["memory_bytes"], job["cpu_s"])
    is_sound = True
    try:
        answer = _JOBS[job["job"]](desk, desk.content(job["num_bytes"]), job)
    except MediaRefused as error:
        answer = {"refused": error.message, "hint": error.hint, "fields": error.fields}
    except MemoryError:
        is_sound, answer = False, {"lacked": "memory"}
    except Exception:  # noqa: BLE001 - told to the parent, which tells whoever waits
        answer = {"failed": traceback.format_exc()[-_LONGEST_TRACE:]}
    finally:
        _unlimit()
    desk.line.send(answer)
    return is_sound


def _header(_: Desk, content: bytes, job: Message) -> Message:
    return {"header": library_header(content, job["name"])}


def _picture(desk: Desk, content: bytes, job: Message) -> Message:
    header = job["header"]
    room = desk.room((header.height, header.width, 3))
    decode_picture(content, header, room)
    return {"shape": list(room.shape)}


def _clip(_: Desk, content: bytes, job: Message) -> Message:
    from mmserve.vision.children import clips  # noqa: PLC0415  a child may never see a clip

    return clips.header(content, job)


def _frames(desk: Desk, content: bytes, job: Message) -> Message:
    from mmserve.vision.children import clips  # noqa: PLC0415  as above

    return clips.frames(desk, content, job)


_JOBS: dict[str, Callable[[Desk, bytes, Message], Message]] = {
    "header": _header,
    "picture": _picture,
    "clip": _clip,
    "frames": _frames,
}


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
