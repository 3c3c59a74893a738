"""Clips whose frames carry their number in blocks of their pixels, in every odd form.

|b0|b1|b2|b3|     eight bits, white for 1; the block of each is 16 x 24 pixels
|b4|b5|b6|b7|
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache

import av
import numpy as np
from plan.vision.making import turned_mp4, zeroed

WIDTH, HEIGHT = 64, 48
ONE, FAR = 65536, 1 << 30
_X264 = {"preset": "veryfast", "crf": "18", "threads": "1"}
_X265 = {"preset": "ultrafast", "crf": "18"}


def painted(number: int):
    """The frame of a number, RGB."""
    bits = np.array([number >> place & 1 for place in range(8)], np.uint8).reshape(2, 4)
    return np.kron(bits * 220 + 16, np.ones((24, 16), np.uint8))[..., None].repeat(3, 2)


def number_in(pixels) -> int:
    """The number that a frame carries."""
    assert pixels.shape == (HEIGHT, WIDTH, 3)
    means = pixels.reshape(2, 24, 4, 16, 3)[:, 6:18, :, 4:12].mean((1, 3, 4)).reshape(8)
    return sum(1 << place for place, mean in enumerate(means) if mean > 127)


@dataclass(frozen=True)
class Numbered:
    """A clip: `starts_s[i]` is when the frame with number i is shown, from the first one on.

    Of `is_cut` clips some frames are lost.
    """

    content: bytes = field(repr=False)
    starts_s: tuple[Fraction, ...] = ()
    is_cut: bool = False


def encoded(
    codec: str,
    container: str = "mp4",
    *,
    layout: str = "yuv420p",
    num: int = 40,
    rate: Fraction | int = 10,
    options: dict[str, str] | None = None,
    ticks: Sequence[int] | None = None,
    mux: dict[str, str] | None = None,
    before: Sequence[str] = (),
) -> bytes:
    """A clip of `num` frames; `ticks` are their times in milliseconds, else they follow `rate`.

    `before` are streams that stand first: `aac` is silence, `mjpeg` a second picture stream.
    """
    return b"".join(
        grown(
            codec,
            container,
            layout=layout,
            num=num,
            rate=rate,
            options=options,
            ticks=ticks,
            mux=mux,
            before=before,
        )
    )


def grown(
    codec: str,
    container: str,
    *,
    layout: str = "yuv420p",
    num: int = 40,
    rate: Fraction | int = 10,
    options: dict[str, str] | None = None,
    ticks: Sequence[int] | None = None,
    mux: dict[str, str] | None = None,
    before: Sequence[str] = (),
) -> tuple[bytes, bytes]:
    """As `encoded`, in two pieces: what stands in the file after half the packets, the rest."""
    file = io.BytesIO()
    with av.open(file, "w", format=container, options=mux or {}) as out:
        others = [_beside(out, name) for name in before]
        stream = out.add_stream(codec, rate=rate, options=options or _USUAL.get(codec, {}))
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, layout
        stream.codec_context.thread_count = 1
        if ticks is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        for other in others:
            out.mux(other())
        size = 0
        for place, packet in enumerate(_packets(stream, num, ticks)):
            out.mux(packet)
            if place + 1 == num // 2:
                size = file.tell()
    return file.getvalue()[:size], file.getvalue()[size:]


def _packets(stream, num, ticks):
    for number in range(num):
        frame = av.VideoFrame.from_ndarray(painted(number), format="rgb24")
        if ticks is not None:
            frame.pts, frame.time_base = ticks[number], Fraction(1, 1000)
        yield from stream.encode(frame)
    yield from stream.encode(None)


def _beside(out, name: str):
    if name == "aac":
        sound = out.add_stream("aac", rate=16000)
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        silence.sample_rate, silence.pts = 16000, 0
        return lambda: sound.encode(silence) + sound.encode(None)
    other = out.add_stream(name, rate=10)
    other.width, other.height, other.pix_fmt = WIDTH, HEIGHT, "yuvj420p"
    if out.format.name != "matroska":
        other.disposition = av.stream.Disposition.attached_pic
    frame = av.VideoFrame.from_ndarray(painted(255), format="rgb24")
    return lambda: other.encode(frame) + other.encode(None)


_USUAL = {
    "libx264": _X264,
    "libx265": {**_X265, "x265-params": "log-level=none:pools=none:keyint=10:min-keyint=10"},
    "libsvtav1": {"preset": "11", "crf": "20", "svtav1-params": "lp=1:keyint=10"},
    "libvpx": {"deadline": "realtime", "cpu-used": "8", "b": "1M", "g": "10"},
    "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8", "b": "1M", "g": "10"},
    "mpeg4": {"qscale": "2", "g": "10"},
    "mpeg2video": {"qscale": "2", "g": "10", "bf": "2"},
}


def even(num: int = 40, period: Fraction = Fraction(1, 10)) -> tuple[Fraction, ...]:
    """Times of frames that follow a rate."""
    return tuple(number * period for number in range(num))


def _x264(params: str = "", **options: str) -> dict[str, str]:
    return {**_X264, **options, **({"x264-params": params} if params else {})}


_PLAIN = even()
_GROUPS = _x264("keyint=10:min-keyint=10:scenecut=0")
_UNEVEN = tuple(40 * n + 7 * (n % 3) + 300 * (n > 20) for n in range(40))
_TURNS = {
    "turned 90": (0, ONE, 0, -ONE, 0, 0, HEIGHT * ONE, 0, FAR),
    "turned 270": (0, -ONE, 0, ONE, 0, 0, 0, WIDTH * ONE, FAR),
    "turned 180": (-ONE, 0, 0, 0, -ONE, 0, WIDTH * ONE, HEIGHT * ONE, FAR),
    "mirrored": (-ONE, 0, 0, 0, ONE, 0, WIDTH * ONE, 0, FAR),
    "flipped": (ONE, 0, 0, 0, -ONE, 0, 0, HEIGHT * ONE, FAR),
}
TURNS_BACK = {
    "turned 90": lambda a: np.rot90(a, 1),
    "turned 270": lambda a: np.rot90(a, -1),
    "turned 180": lambda a: np.rot90(a, 2),
    "mirrored": np.fliplr,
    "flipped": np.flipud,
}


def _lengthened(mp4: bytes) -> bytes:
    """An MP4 whose header says that it lasts ten times as long."""
    at = mp4.index(b"mvhd") + 20
    length = int.from_bytes(mp4[at : at + 4], "big")
    return mp4[:at] + (10 * length).to_bytes(4, "big") + mp4[at + 4 :]


def _edited(mp4: bytes) -> Numbered:
    """An MP4 whose edit list begins in the middle of a group, at frame 5."""
    at = mp4.index(b"elst") + 16
    step = 1024
    begin = int.from_bytes(mp4[at : at + 4], "big") + 5 * step
    content = mp4[:at] + begin.to_bytes(4, "big") + mp4[at + 4 :]
    return Numbered(content, tuple(time - Fraction(5, 10) for time in _PLAIN), is_cut=True)


@cache
def clip(name: str) -> Numbered:
    """The clip of that name. Cost: 15 ms the first time."""
    if name in _EVEN:
        codec, container, options = _EVEN[name]
        return Numbered(encoded(codec, container, **options), _PLAIN)
    if name in _TURNS:
        return Numbered(turned_mp4(clip("groups").content, _TURNS[name]), _PLAIN)
    return _OTHERS[name]()


def _late(container: str) -> Numbered:
    """A clip whose first timestamp is far from 0."""
    ticks = tuple(100 * n + 12345 for n in range(40))
    return Numbered(encoded("libx264", container, options=_GROUPS, ticks=ticks), _PLAIN)


def _uneven(container: str) -> Numbered:
    """A clip of variable frame rate."""
    content = encoded("libx264", container, options=_GROUPS, ticks=_UNEVEN)
    return Numbered(content, tuple(Fraction(tick, 1000) for tick in _UNEVEN))


def _raw(codec: str, container: str, **options: str) -> Numbered:
    """A stream without a container, hence without timestamps."""
    kept = {**_USUAL[codec], **options}
    return Numbered(encoded(codec, container, rate=25, options=kept), even(40, Fraction(1, 25)))


def _at_rate(num: int, rate: Fraction) -> Numbered:
    return Numbered(encoded("libx264", num=num, rate=rate), even(num, 1 / rate))


def _cut(name: str, unit: int = 1) -> Numbered:
    """Two thirds of a clip, in whole units of bytes."""
    content = clip(name).content
    return Numbered(content[: len(content) * 2 // 3 // unit * unit], _PLAIN, is_cut=True)


_EVEN: dict[str, tuple[str, str, dict]] = {
    "groups": ("libx264", "mp4", {"options": _GROUPS}),
    "no b-frames": ("libx264", "mp4", {"options": _x264("keyint=8:min-keyint=8", bf="0")}),
    "open groups": (
        "libx264",
        "mp4",
        {"options": _x264("open-gop=1:keyint=10:min-keyint=1:bframes=3:b-adapt=0:scenecut=0")},
    ),
    "intra refresh": (
        "libx264", "mp4", {"options": _x264("intra-refresh=1:keyint=10:bframes=0")},
    ),
    "10 bits": ("libx264", "mp4", {"options": _GROUPS, "layout": "yuv420p10le"}),
    "full colour": ("libx264", "mp4", {"options": _GROUPS, "layout": "yuv444p"}),
    "interlaced": ("libx264", "mp4", {"options": _x264("tff=1:keyint=10")}),
    "matroska": ("libx264", "matroska", {"options": _GROUPS}),
    "transport": ("libx264", "mpegts", {"options": _GROUPS}),
    "fragments": (
        "libx264",
        "mp4",
        {"options": _GROUPS, "mux": {"movflags": "frag_keyframe+empty_moov"}},
    ),
    "avi, reordered": ("libx264", "avi", {"options": _GROUPS}),
    "hevc": ("libx265", "mp4", {}),
    "hevc 10 bits": ("libx265", "mp4", {"layout": "yuv420p10le"}),
    "hevc transport": ("libx265", "mpegts", {}),
    "vp8": ("libvpx", "webm", {}),
    "vp8 ivf": ("libvpx", "ivf", {}),
    "vp9": ("libvpx-vp9", "webm", {}),
    "vp9 unshown": (
        "libvpx-vp9",
        "matroska",
        {
            "options": {
                "deadline": "good",
                "cpu-used": "5",
                "auto-alt-ref": "1",
                "lag-in-frames": "12",
                "b": "1M",
                "g": "12",
            }
        },
    ),
    "av1": ("libsvtav1", "mp4", {}),
    "av1 matroska": ("libsvtav1", "matroska", {}),
    "mpeg4 avi": ("mpeg4", "avi", {}),
    "mpeg4, reordered": ("mpeg4", "mp4", {"options": {"qscale": "2", "g": "10", "bf": "2"}}),
    "mpeg2 transport": ("mpeg2video", "mpegts", {}),
    "mjpeg": ("mjpeg", "mov", {"layout": "yuvj420p"}),
    "flash": ("flv", "flv", {"options": {"qscale": "2", "g": "10"}}),
    "gif": ("gif", "gif", {"layout": "gray"}),
    "apng": ("apng", "apng", {"layout": "rgb24"}),
    "ffv1": ("ffv1", "matroska", {}),
    "alpha": ("qtrle", "mov", {"layout": "argb"}),
    "prores": ("prores_ks", "mov", {"layout": "yuv422p10le"}),
    "sound first": ("libx264", "mp4", {"options": _GROUPS, "before": ["aac"]}),
    "cover first": ("libx264", "mp4", {"options": _GROUPS, "before": ["mjpeg"]}),
}  # fmt: skip

_OTHERS: dict[str, Callable[[], Numbered]] = {
    "one key frame": lambda: Numbered(
        encoded("libx264", options=_x264("keyint=99:scenecut=0")), _PLAIN
    ),
    "slow": lambda: _at_rate(8, Fraction(2, 5)),
    "fast": lambda: _at_rate(120, Fraction(120)),
    "uneven mp4": lambda: _uneven("mp4"),
    "uneven matroska": lambda: _uneven("matroska"),
    "late mp4": lambda: _late("mp4"),
    "late matroska": lambda: _late("matroska"),
    "late transport": lambda: _late("mpegts"),
    "late flash": lambda: _late("flv"),
    "raw": lambda: _raw("libx264", "h264", bf="0"),
    "raw, reordered": lambda: _raw("libx264", "h264"),
    "raw hevc": lambda: _raw("libx265", "hevc"),
    "long header": lambda: Numbered(_lengthened(clip("groups").content), _PLAIN),
    "edited": lambda: _edited(clip("groups").content),
    "cut matroska": lambda: _cut("matroska"),
    "cut transport": lambda: _cut("transport", 188),
    "zeroed": lambda: Numbered(zeroed(clip("groups").content), _PLAIN, is_cut=True),
}

NAMES = (*_EVEN, *_TURNS, *_OTHERS)
