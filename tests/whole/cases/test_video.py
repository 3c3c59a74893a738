"""Odd clips over HTTP: the frames that a player shows are seen, the rest is refused."""

from __future__ import annotations

import base64
import io
import json
import os
import threading
from contextlib import closing, contextmanager
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from plan.vision.making import (
    brightening,
    clip_of,
    flat,
    noise,
    saved,
    turned_mp4,
    zeroed,
)
from support.oracle import Asker, Reply, data_uri, differ, same
from typer.testing import CliRunner

from mmserve.cli import app

QUESTION = "What happens?"
LOSSLESS = {"layout": "yuv444p", "options": {"qp": "0", "preset": "ultrafast"}}
ONE, FAR = 65536, 1 << 30
_MIB = 1 << 20


def video(content: bytes, **wishes):
    """A clip as a content part."""
    url = data_uri(content, "video/mp4")
    return {"type": "video_url", "video_url": {"url": url, **wishes}}


def pictures(frames, fps: float = 5.0):
    """Frames as a clip of pictures."""
    rows = [base64.b64encode(saved(frame)).decode() for frame in frames]
    return {"type": "video_url", "video_url": {"frames": rows, "fps": fps}}


def times(reply: Reply) -> list[float]:
    """When the frames that were taken are shown."""
    (clip,) = reply.body["mmserve"]["clips"]
    return clip["timestamps_s"]


def turned_away(ask: Asker, *content, **fields) -> str:
    """Assert a clear 4xx, streaming or not; its message."""
    replies = [ask.chat(*content, **fields, stream=stream) for stream in (False, True)]
    assert replies[0].status == replies[1].status
    assert 400 <= replies[0].status < 500
    assert replies[0].body == replies[1].body
    assert "Traceback" not in replies[0].error["message"]
    return replies[0].error["message"]


def canary(ask: Asker) -> None:
    """Text and another clip are still answered."""
    assert ask.chat("hello").status == 200
    assert ask.chat(video(clip_of(brightening(3))), QUESTION).status == 200


def halves():
    """Red on the left, green on the right, 64 x 48."""
    pixels = flat(48, 64, (255, 0, 0))
    pixels[:, 32:] = (0, 255, 0)
    return pixels


@pytest.mark.parametrize("num_frames", [1, 4])
def test_rotation_in_the_container_is_applied(ask, num_frames):
    """A turned clip is seen as the clip whose pixels are turned (O-VID-01)."""
    plain = clip_of([halves()] * 5, **LOSSLESS)
    turned = turned_mp4(plain, (0, ONE, 0, -ONE, 0, 0, 48 * ONE, 0, FAR))
    upright = clip_of([np.rot90(halves(), -1)] * 5, **LOSSLESS)
    answer = ask.chat(video(turned, num_frames=num_frames), QUESTION)
    same(answer, ask.chat(video(upright, num_frames=num_frames), QUESTION))
    differ(answer, ask.chat(video(plain, num_frames=num_frames), QUESTION))


@pytest.mark.parametrize(("asked", "used"), [(20, 10), (11, 10), (10, 10), (9, 9), (1, 1)])
def test_frames_asked_beyond_the_last_do_not_exist(ask, asked, used):
    """Never more than all frames are used, each once, first and last included (O-VID-02)."""
    frames = brightening(10)
    answer = ask.chat(video(clip_of(frames), num_frames=asked), QUESTION)
    assert len(times(answer)) == len(set(times(answer))) == used
    assert times(answer) == sorted(times(answer))
    if used > 1:
        assert (times(answer)[0], times(answer)[-1]) == (0.0, 1.8)
        still = clip_of([frames[0]] * 10)
        differ(answer, ask.chat(video(still, num_frames=asked), QUESTION))


@pytest.mark.parametrize("kind", ["cut Matroska", "zeroed MP4"])
def test_what_is_readable_is_served(ask, kind):
    """A cut or zeroed clip is answered from the frames that decode, with a note (O-VID-03)."""
    frames = [(noise(48, 64, seed) // 12 + 4 * seed).astype(np.uint8) for seed in range(50)]
    if kind == "zeroed MP4":
        content = zeroed(clip_of(frames))
    else:
        whole = clip_of(frames, container="matroska")
        content = whole[: len(whole) * 2 // 3]
    answer = ask.chat(video(content, num_frames=8), QUESTION)
    assert answer.status == 200
    assert len(times(answer)) == 8
    assert times(answer)[-1] < 8.5
    assert "of 50 frames were unreadable" in answer.body["mmserve"]["clips"][0]["note"]
    canary(ask)


def without_pictures() -> dict[str, bytes]:
    """Files in which nothing moves."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as out:
        stream = out.add_stream("aac", rate=16000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 16000), np.float32), "fltp", "mono")
        frame.sample_rate = 16000
        out.mux(stream.encode(frame))
        out.mux(stream.encode())
    plain = clip_of(brightening(2))
    return {
        "sound": file.getvalue(),
        "nothing": b"",
        "no samples": plain[: plain.index(b"mdat") - 4],
        "text": b"words, not a film\n" * 20,
    }


@pytest.mark.parametrize("kind", ["sound", "nothing", "no samples", "text"])
def test_files_without_a_video_stream_are_refused(ask, kind):
    """A file without moving pictures is refused as such (O-VID-04)."""
    message = turned_away(ask, video(without_pictures()[kind]), QUESTION)
    assert "has no decodable video stream" in message or "empty" in message
    canary(ask)


def test_still_picture_is_a_clip_of_one_frame(ask):
    """A JPEG sent as a clip is its one frame (O-VID-04)."""
    answer = ask.chat(video(saved(halves(), "JPEG", quality=95), num_frames=4), QUESTION)
    assert times(answer) == [0.0]


def without_a_rate(kind: str) -> bytes:
    """Clips whose frame rate is missing, zero, or rounds to zero."""
    if kind == "raw":
        return clip_of(brightening(10), container="h264")
    if kind == "slow":
        return clip_of(brightening(10), rate=Fraction(2, 5))
    content = clip_of(brightening(10), container="avi", codec="mjpeg", layout="yuvj420p")
    at = content.index(b"strh") + 32
    return content[:at] + bytes(4) + content[at + 4 :]


@pytest.mark.parametrize("kind", ["raw", "slow", "zero"])
def test_clips_without_a_usable_rate_are_served(ask, kind):
    """Without a rate, frames are sampled by number and by time all the same (O-VID-05)."""
    content = without_a_rate(kind)
    by_number = ask.chat(video(content, num_frames=4), QUESTION)
    by_rate = ask.chat(video(content, fps=2), QUESTION)
    assert (by_number.status, by_rate.status) == (200, 200)
    assert len(times(by_number)) == 4
    assert len(times(by_rate)) >= 1


@pytest.mark.parametrize(
    "wishes", [{"num_frames": 1}, {"num_frames": 8}, {"fps": 1}, {"start_s": 0, "end_s": 1}]
)
def test_clip_of_one_frame(ask, wishes):
    """A clip of one frame is that frame, however asked for (O-VID-06)."""
    one = ask.chat(video(clip_of([halves()], **LOSSLESS), **wishes), QUESTION)
    longer = ask.chat(video(clip_of([halves()] * 5, **LOSSLESS), num_frames=1), QUESTION)
    assert times(one) == [0.0]
    same(one, longer)


@pytest.fixture(scope="module")
def still_stream() -> bytes:
    """5,000 equal frames of 64 x 64 as a raw stream; 61 MB when decoded."""
    options = {"preset": "ultrafast", "g": "250"}
    frames = [flat(64, 64, (200, 30, 30))] * 5000
    return clip_of(frames, container="h264", rate=25, options=options)


def test_more_frames_than_the_limit_are_refused(ask, still_stream):
    """15,000 frames in a small file are refused with the limit (O-VID-07)."""
    assert len(still_stream) < _MIB
    message = turned_away(ask, video(still_stream * 3, num_frames=4), QUESTION)
    assert "more than 10000 frames, the limit" in message
    canary(ask)


def peaks() -> dict[int, int]:
    """Most memory in bytes that this process and its children have had, by process."""
    own = os.getpid()
    tasks = Path(f"/proc/{own}/task").glob("*/children")
    children = [int(word) for task in tasks for word in task.read_text().split()]
    found = {}
    for process in (own, *children):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                found[process] = int(line.split()[1]) * 1024
    return found


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_long_clips_hold_only_wanted_frames(ask, still_stream):
    """4 of 5,000 frames take far less than all would, while others are served (O-VID-07)."""
    canary(ask)
    before, answers = peaks(), []
    asking = threading.Thread(
        target=lambda: answers.append(ask.chat(video(still_stream, num_frames=4), QUESTION))
    )
    asking.start()
    with closing(Asker(ask.url)) as other:
        assert other.chat("hello").status == 200
    asking.join(60)
    after = peaks()
    assert times(answers[0]) == pytest.approx([0.0, 66.64, 133.32, 199.96], abs=0.05)
    grown = [after[process] - before[process] for process in before if process in after]
    assert sum(grown) < 5000 * 64 * 64 * 3 / 2


def ramp():
    """Grey from black on the left to white on the right."""
    row = np.linspace(0, 255, 128).astype(np.uint8)[None, :, None]
    return row.repeat(64, 0).repeat(3, 2)


def gap(one: Reply, other: Reply) -> float:
    """Furthest apart that the first token's log-probabilities are."""
    found = []
    for reply in (one, other):
        assert reply.status == 200, reply.body
        entries = reply.scores[0]["top_logprobs"]
        found.append({tuple(entry["bytes"]): entry["logprob"] for entry in entries})
    both = found[0].keys() & found[1].keys()
    return max(abs(found[0][token] - found[1][token]) for token in both) if both else 9.0


@pytest.mark.parametrize(
    ("codec", "container", "layout"),
    [
        ("libx265", "mp4", "yuv420p10le"),
        ("libsvtav1", "mp4", "yuv420p"),
        ("libvpx-vp9", "webm", "yuv420p"),
    ],
)
def test_other_codecs_and_depths_have_the_right_tones(ask, codec, container, layout):
    """HEVC of 10 bits, AV1 and VP9 are seen as H.264 of the same frames (O-VID-08)."""
    reference = ask.chat(video(clip_of([ramp()] * 8), num_frames=2), QUESTION)
    options = {"deadline": "realtime", "crf": "4", "b": "0"} if "vpx" in codec else None
    content = clip_of(
        [ramp()] * 8, codec=codec, container=container, layout=layout, options=options
    )
    answer = ask.chat(video(content, num_frames=2), QUESTION)
    wrapped = ask.chat(video(clip_of([ramp() * 4] * 8), num_frames=2), QUESTION)
    assert answer.prompt_tokens == reference.prompt_tokens
    assert gap(answer, reference) < gap(wrapped, reference) / 4


@contextmanager
def no_engine(config):
    """What the command gets when it must not need an engine."""
    yield None


def test_rows_about_files_that_cannot_be_had(ask, media_host, tmp_path):
    """Missing and unreadable files fail their rows only, each by its own name (O-BAT-05)."""
    (tmp_path / "empty.mp4").write_bytes(b"")
    (tmp_path / "good.mp4").write_bytes(clip_of(brightening(4)))
    gone = media_host.put("/there.mp4", b"x").replace("there", "gone")
    places = [tmp_path / "missing.mp4", tmp_path, tmp_path / "empty.mp4", gone]
    rows = [
        {"video": str(place), "question": "q"} for place in [*places, tmp_path / "good.mp4"]
    ]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({**row, "max_tokens": 4}) + "\n" for row in rows))
    command = ["video-qa", str(source), "-o", str(target), "--url", ask.url]
    assert CliRunner().invoke(app, command, obj=no_engine).exit_code == 3
    records = [json.loads(line) for line in target.read_text().splitlines()]
    errors = [record["error"]["message"] for record in records if record["error"]]
    assert [str(place) in text for place, text in zip(places, errors, strict=True)] == [
        True
    ] * 4
    assert records[-1]["answer"] is not None
    assert media_host.hits.count("/gone.mp4") <= 2
