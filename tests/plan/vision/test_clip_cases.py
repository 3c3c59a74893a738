"""Acceptance cases O-VID-01 to 08: which frames clips give, and what is refused."""

import io
import logging
import time
import tracemalloc
from fractions import Fraction

import av
import numpy as np
import pytest
from plan.vision.making import (
    GREEN,
    RED,
    brightening,
    clip_of,
    close_to,
    flat,
    frames_shown,
    new_plane,
    noise,
    pixels_of,
    saved,
    turned_mp4,
    with_orientation,
    zeroed,
)

from mmserve.core import (
    BadRequest,
    BytesSource,
    FramesSource,
    MediaConfig,
    MediaRefused,
    VideoPart,
)
from mmserve.vision.clips.packets import PacketCheck
from mmserve.vision.video import probe_clip

ONE = 65536
FAR = 1 << 30


def halves(height: int = 48, width: int = 64):
    """Red and green halves with a white corner, so that every turn shows."""
    pixels = flat(height, width, RED)
    pixels[:, width // 2 :] = GREEN
    pixels[: height // 4, : width // 4] = (255, 255, 255)
    return pixels


@pytest.mark.parametrize(
    ("matrix", "turn"),
    [
        ((0, ONE, 0, -ONE, 0, 0, 48 * ONE, 0, FAR), lambda a: np.rot90(a, -1)),
        ((0, -ONE, 0, ONE, 0, 0, 0, 64 * ONE, FAR), np.rot90),
        ((-ONE, 0, 0, 0, -ONE, 0, 64 * ONE, 48 * ONE, FAR), lambda a: np.rot90(a, 2)),
        ((-ONE, 0, 0, 0, ONE, 0, 64 * ONE, 0, FAR), np.fliplr),
        ((ONE, 0, 0, 0, ONE, 0, 0, 0, FAR), lambda a: a),
    ],
)
@pytest.mark.parametrize("num_frames", [1, 4])
def test_rotation_is_applied(matrix, turn, num_frames):
    """Frames are turned as the container's display matrix says (O-VID-01)."""
    content = turned_mp4(clip_of([halves()] * 5), matrix)
    frames, _, _ = frames_shown(content, num_frames=num_frames)
    assert [close_to(frame, turn(halves())) for frame in frames] == [True] * num_frames
    plane = new_plane()
    (item,) = plane.resolve(VideoPart(BytesSource(content), 1), salt="", index=0).items
    plane.close()
    assert (item.height, item.width) == frames[0].shape[:2]


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        (20, range(10)),
        (11, range(10)),
        (10, range(10)),
        (9, [0, 1, 2, 3, 5, 6, 7, 8, 9]),
        (2, [0, 9]),
        (1, [4]),
    ],
)
def test_never_more_frames_than_exist(asked, taken):
    """Frames are distinct, rising, ends included, at most as many as exist (O-VID-02)."""
    frames, times, note = frames_shown(clip_of(brightening(10)), num_frames=asked)
    assert [round(float(frame.mean()) / 25) for frame in frames] == list(taken)
    assert times == tuple(number / 5 for number in taken)
    assert note is None


def grainy(num: int):
    """Frame i has brightness 4 i + 10 and grain that takes bytes to code."""
    grain = [noise(48, 64, seed)[..., :1] // 12 for seed in range(num)]
    return [(4 * i + grey).repeat(3, 2).astype(np.uint8) for i, grey in enumerate(grain)]


def test_cut_matroska_gives_its_readable_part(caplog):
    """A Matroska file cut at two thirds is served as far as it goes, with a note (O-VID-03)."""
    frames = grainy(50)
    content = clip_of(frames, container="matroska")
    with caplog.at_level(logging.WARNING):
        shown, times, note = frames_shown(content[: len(content) * 2 // 3], num_frames=8)
    assert len(shown) == 8
    assert 5 < times[-1] < 8
    assert [round(t * 5) for t in times] == [round((a.mean() - 10) / 4) for a in shown]
    assert note == f"{50 - round(times[-1] * 5) - 1} of 50 frames were unreadable"
    assert "frames are unreadable" in caplog.text


class FakePacket(bytes):
    """A packet's payload."""

    is_corrupt = False


class FakeCodec:
    """A codec with the configuration record of an H.264 track: lengths of four bytes."""

    def __init__(self, name: str) -> None:
        self.codec = self
        self.canonical_name = name
        self.extradata = b"\1\x42\0\x0a\xff"


@pytest.mark.parametrize(
    ("codec", "payload", "is_sound"),
    [
        ("h264", b"\0\0\0\2ab\0\0\0\1c", True),
        ("h264", b"\0\0\0\2ab\0\0\0\2c", False),
        ("h264", b"\0\0\0\2ab\0\0\0\0\0\0\0\0", False),
        ("h264", b"\0\0\0\2ab\0\0", False),
        ("vp9", b"ab", True),
        ("vp9", bytes(9), False),
    ],
)
def test_damaged_packets_are_seen(codec, payload, is_sound):
    """Zeroed payloads and units that do not fill their packet look damaged without decoding."""
    assert PacketCheck(FakeCodec(codec)).is_sound(FakePacket(payload)) is is_sound


def test_zeroed_mp4_gives_its_readable_part():
    """An MP4 whose last payload is zeros is served from the frames that decode (O-VID-03)."""
    frames = grainy(50)
    content = zeroed(clip_of(frames))
    shown, times, note = frames_shown(content, num_frames=8)
    last = round(times[-1] * 5)
    assert 30 <= last < 40
    assert [round(t * 5) for t in times] == [round((a.mean() - 10) / 4) for a in shown]
    assert note == f"{49 - last} of 50 frames were unreadable"


def test_frame_that_fails_later_is_replaced(caplog):
    """A frame that looked sound but does not decode is replaced by the last one (O-VID-03)."""
    options = {"crf": "1", "bf": "0", "g": "1", "preset": "ultrafast"}
    content = bytearray(clip_of(brightening(5), options=options))
    container = av.open(io.BytesIO(bytes(content)))
    packets = [(p.pos, p.size) for p in container.demux(video=0) if p.size]
    container.close()
    at, size = packets[2]
    length = int.from_bytes(content[at : at + 4], "big")
    content[at + 4] = (
        0x1F  # an unspecified type of unit: its frame is gone, its length is right
    )
    if length + 4 < size:
        content[at + 4 + length + 4] = 0x1F
    with caplog.at_level(logging.WARNING):
        shown, times, note = frames_shown(bytes(content), num_frames=5)
    assert (len(shown), len(times), note) == (5, 5, None)
    assert [round(float(frame.mean()) / 25) for frame in shown] == [0, 1, 1, 3, 4]
    assert "the one before stands in" in caplog.text


def audio_only() -> bytes:
    """An MP4 with one second of silence and no pictures."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as out:
        stream = out.add_stream("aac", rate=16000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 16000), np.float32), "fltp", "mono")
        frame.sample_rate = 16000
        out.mux(stream.encode(frame))
        out.mux(stream.encode())
    return file.getvalue()


def empty_mp4() -> bytes:
    """An MP4 without its samples."""
    content = clip_of(brightening(2))
    return content[: content.index(b"mdat") - 4]


@pytest.mark.parametrize(
    "content",
    [
        audio_only(),
        b"",
        empty_mp4(),
        b"words, not a film\n" * 20,
        clip_of(brightening(2))[:600],
        b"#EXTM3U\n#EXTINF:1,\n/etc/hostname\n#EXT-X-ENDLIST\n",
        b"ffconcat version 1.0\nfile /etc/hostname\n",
    ],
    ids=["audio", "nothing", "no samples", "text", "cut", "playlist", "concat"],
)
def test_no_video_is_refused(content):
    """A file without moving pictures is refused as such (O-VID-04)."""
    with pytest.raises(
        MediaRefused, match=r"^video 1 (has no decodable video|is empty)"
    ) as caught:
        frames_shown(content)
    assert caught.value.fields["reason"] == "undecodable"
    assert caught.value.fields["index"] == 0


def test_list_of_files_cannot_open_them(tmp_path, monkeypatch):
    """A list of files given as a clip does not open what lies in the working folder."""
    (tmp_path / "a.mp4").write_bytes(clip_of(brightening(2)))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MediaRefused):
        probe_clip(b"ffconcat version 1.0\nfile a.mp4\n", MediaConfig())


def test_playlist_cannot_make_the_server_fetch(web):
    """A playlist given as a clip leads to no request."""
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{web.url('/a.ts')}\n"
    with pytest.raises(MediaRefused):
        probe_clip(playlist.encode(), MediaConfig())
    assert web.asked == []


@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP", "BMP", "TIFF"])
def test_still_picture_is_a_clip_of_one_frame(name):
    """A still picture sent as a video is one upright frame (O-VID-04)."""
    options = {} if name == "BMP" else {"exif": with_orientation(6)}
    frames, times, note = frames_shown(saved(halves(), name, **options), num_frames=4)
    assert frames[0].shape == ((48, 64, 3) if name == "BMP" else (64, 48, 3))
    assert (len(frames), times, note) == (1, (0.0,), None)


UNTIMED = {
    "raw H.264": {"container": "h264"},
    "raw MJPEG": {"container": "mjpeg", "codec": "mjpeg", "layout": "yuvj420p"},
    "slow": {"rate": Fraction(2, 5)},
}


@pytest.mark.parametrize("name", list(UNTIMED))
def test_clips_without_a_usable_rate_are_served(name):
    """Raw streams count 25 frames a second, very slow clips keep their own times (O-VID-05)."""
    content = clip_of(brightening(10), **UNTIMED[name])
    frames, times, _ = frames_shown(content, num_frames=4)
    assert [round(float(frame.mean()) / 25) for frame in frames] == [0, 3, 6, 9]
    assert times == ((0.0, 7.5, 15.0, 22.5) if name == "slow" else (0.0, 0.12, 0.24, 0.36))
    _, times, _ = frames_shown(content, fps=2)
    assert times == (tuple(n * 2.5 for n in range(10)) if name == "slow" else (0.0,))


def test_avi_with_a_zero_rate_is_served():
    """An AVI whose header says a rate of zero does not divide by it (O-VID-05)."""
    content = bytearray(
        clip_of(brightening(6), container="avi", codec="mjpeg", layout="yuvj420p")
    )
    at = content.index(b"strh") + 8
    content[at + 24 : at + 28] = bytes(4)
    frames, _, _ = frames_shown(bytes(content), num_frames=3)
    assert len(frames) == 3
    assert frames_shown(bytes(content), fps=2)[0]


@pytest.mark.parametrize(
    "wishes",
    [{"num_frames": 1}, {"num_frames": 8}, {"fps": 1.0}, {"start_s": 0.0, "end_s": 1.0}],
)
def test_single_frame_clip(wishes):
    """A clip of one frame gives that frame, however it is asked for (O-VID-06)."""
    frames, times, _ = frames_shown(clip_of([halves()]), **wishes)
    assert times == (0.0,)
    assert close_to(frames[0], halves())


@pytest.fixture(scope="module")
def long_clip() -> bytes:
    """5,000 equal frames of 16 x 16."""
    return clip_of([flat(16, 16, RED)] * 5000, rate=25)


def test_clip_of_too_many_frames_is_refused_quickly(long_clip):
    """More frames than the limit are refused while demuxing (O-VID-07)."""
    started = time.monotonic()
    with pytest.raises(MediaRefused, match="more than 1000 frames") as caught:
        probe_clip(long_clip, MediaConfig(max_decode_frames=1000))
    assert caught.value.fields["reason"] == "too_large"
    assert time.monotonic() - started < 20


def test_long_clip_holds_only_wanted_frames(long_clip):
    """Sampling 4 of 5,000 frames never holds the others (O-VID-07)."""
    plane = new_plane()
    tracemalloc.start()
    items = plane.resolve(VideoPart(BytesSource(long_clip), 4), salt="", index=0).items
    frames = pixels_of(plane, items)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    plane.close()
    assert len(frames) == 4
    assert peak < 16 * 16 * 3 * 5000 / 2


@pytest.mark.parametrize(
    ("limits", "words"),
    [({"max_duration_s": 1.9}, "lasts 2 s"), ({"max_pixels": 3071}, "64 x 48 = 3072 pixels")],
)
def test_other_limits_of_clips(limits, words):
    """Clips have a limit in seconds and in pixels of a frame."""
    with pytest.raises(MediaRefused, match=words) as caught:
        probe_clip(clip_of(brightening(10)), MediaConfig(**limits))
    assert caught.value.fields["reason"] == "too_large"


def ramp():
    """Grey from black on the left to white on the right."""
    return np.repeat(np.linspace(0, 255, 128).astype(np.uint8)[None, :, None], 64, 0).repeat(
        3, 2
    )


MODERN = {
    "AV1": {"codec": "libsvtav1"},
    "HEVC 10-bit": {"codec": "libx265", "layout": "yuv420p10le"},
    "VP9": {"codec": "libvpx-vp9", "container": "webm", "options": {"crf": "4", "b": "0"}},
    "GIF": {"codec": "gif", "container": "gif", "layout": "gray"},
}


@pytest.mark.parametrize("name", list(MODERN))
def test_modern_codecs_have_the_right_tones(name):
    """AV1, 10-bit HEVC, VP9 and GIF clips show the tones of an 8-bit H.264 clip (O-VID-08)."""
    reference, _, _ = frames_shown(clip_of([ramp()] * 8))
    frames, times, _ = frames_shown(clip_of([ramp()] * 8, **MODERN[name]))
    assert len(frames) == len(times) == 8
    assert all(close_to(a, b) for a, b in zip(reference, frames, strict=True))


@pytest.mark.parametrize(
    ("container", "known", "unknown"),
    [("mp4", b"avc1", b"zz01"), ("matroska", b"V_MPEG4/ISO/AVC", b"V_NONE4/ISO/ABC")],
)
def test_codec_without_a_decoder_is_named(container, known, unknown):
    """A clip in a codec that nothing here decodes is refused by the codec's name (O-VID-08)."""
    content = clip_of(brightening(3), container=container).replace(known, unknown)
    with pytest.raises(MediaRefused, match=unknown.decode()) as caught:
        frames_shown(content)
    assert caught.value.fields["reason"] == "unsupported"


def test_frames_given_as_pictures():
    """A clip of pictures gives every picture, in order, at its own rate."""
    pictures = tuple(BytesSource(saved(flat(8, 8, (n, n, n)))) for n in range(12))
    plane = new_plane()
    resolved = plane.resolve(VideoPart(FramesSource(pictures, fps=4.0)), salt="", index=0)
    frames = pixels_of(plane, resolved.items)
    assert resolved.clip.timestamps_s == tuple(n / 4 for n in range(12))
    assert [int(frame[0, 0, 0]) for frame in frames] == list(range(12))
    sampled = plane.resolve(VideoPart(FramesSource(pictures, 4.0), 3), salt="", index=0)
    plane.close()
    assert sampled.clip.timestamps_s == (0.0, 1.5, 2.75)


@pytest.mark.parametrize("source", [FramesSource(()), FramesSource((BytesSource(b"x"),), 0.0)])
def test_odd_frames_are_refused(source):
    """No frames, or frames at no rate, are refused."""
    plane = new_plane()
    with pytest.raises((MediaRefused, BadRequest), match=r"^video 3 "):
        plane.resolve(VideoPart(source), salt="", index=2)
    plane.close()


@pytest.mark.parametrize(
    ("wishes", "field"),
    [
        ({"num_frames": 0}, "num_frames"),
        ({"fps": 0.0}, "fps"),
        ({"fps": float("nan")}, "fps"),
        ({"start_s": -1.0}, "start_s"),
        ({"start_s": 2.0}, "start_s"),
        ({"start_s": 1.0, "end_s": 1.0}, "end_s"),
        ({"num_frames": 9, "fps": 5.0}, "num_frames"),
    ],
)
def test_wishes_without_meaning_are_refused(wishes, field):
    """Sampling values that cannot be served are refused, naming the field."""
    plane = new_plane(max_video_frames=8)
    with pytest.raises(BadRequest, match=r"^video 1 ") as caught:
        plane.resolve(
            VideoPart(BytesSource(clip_of(brightening(10))), **wishes), salt="", index=0
        )
    plane.close()
    assert caught.value.param == field
