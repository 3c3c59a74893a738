"""Frames arrive whole and in order, and leave no descriptor behind."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmserve.core import BytesSource, ImagePart, Request, TextPart
from mmserve.engine.remote.codec import LARGE_BYTES, Blobs, encode
from mmserve.engine.remote.messages import Cancel, Counters, Message, Submit
from mmserve.engine.remote.wire import Wire


@pytest.fixture
def ends() -> Iterator[tuple[Wire, Wire]]:
    """Both ends of a connection."""
    pair = socket.socketpair()
    wires = Wire(pair[0]), Wire(pair[1])
    yield wires
    for wire in wires:
        wire.close()
        wire.free()


def pictures(number: int, *sizes: int) -> Submit:
    """A request with pictures of so many bytes."""
    parts = tuple(ImagePart(BytesSource(os.urandom(size))) for size in sizes)
    return Submit(number, Request(request_id="r", parts=parts))


def descriptors() -> int:
    """Open files of this process."""
    return len(list(Path("/dev/fd").iterdir()))


def test_frames_arrive_in_order_with_their_pictures(ends):
    """Small and large messages, one or several to a frame, come as they were sent."""
    frames: list[list[Message]] = [
        [Counters(1)],
        [pictures(2, LARGE_BYTES, 10, 3 * LARGE_BYTES), Cancel(2), pictures(3, LARGE_BYTES)],
        [pictures(4, 5_000_000)],
        [Submit(5, Request(request_id="r", parts=(TextPart("x" * 3_000_000),)))],
        [],
        [Cancel(5)],
    ]
    before = descriptors()
    sender = threading.Thread(target=lambda: [ends[0].send(frame) for frame in frames])
    sender.start()
    assert [ends[1].receive() for _ in frames] == frames
    sender.join()
    assert descriptors() == before


def test_a_picture_of_many_messages_goes_once(ends):
    """One frame's messages share its bytes, on the other side, too."""
    content = bytes(LARGE_BYTES)
    parts = (ImagePart(BytesSource(content)),)
    frame = [Submit(n, Request(request_id="r", parts=parts)) for n in range(3)]
    blobs = Blobs()
    for message in frame:
        encode(message, blobs)
    assert blobs.num_bytes == LARGE_BYTES
    ends[0].send(frame)
    got = ends[1].receive()
    assert got == frame
    assert len({id(one.request.parts[0].source.content) for one in got}) == 1


def test_pictures_that_nobody_received_leave_nothing(ends):
    """When the receiver dies first, the sender's bytes are gone with it."""
    before = descriptors()
    ends[0].send([pictures(1, LARGE_BYTES)])
    assert descriptors() == before
    ends[1].free()
    with pytest.raises(OSError):
        ends[0].send([pictures(2, LARGE_BYTES)])
    assert descriptors() == before - 1


def test_the_end_is_heard_after_the_last_frame(ends):
    """What was sent before the other side went is read, then EOFError."""
    ends[0].send([Cancel(1)])
    ends[0].close()
    assert ends[1].receive() == [Cancel(1)]
    with pytest.raises(EOFError):
        ends[1].receive()


def test_a_bad_message_spares_its_neighbours(ends):
    """A message that cannot be written goes back, the others of its frame arrive."""
    bad = Submit(2, Request(request_id="r", parts=(object(),)))  # type: ignore[arg-type]
    told: list[Message] = []
    frame = [Cancel(1), bad, pictures(3, LARGE_BYTES)]
    ends[0].send(frame, lambda message, error: told.append(message))
    assert ends[1].receive() == [frame[0], frame[2]]
    assert told == [bad]
