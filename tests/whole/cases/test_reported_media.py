"""Kinds of bugs that were reported of media elsewhere, each tried here.

Sources are public reports; what is tried is of our own making.
"""

from __future__ import annotations

import io
import struct
import zlib
from fractions import Fraction

import av
import numpy as np
import pytest
from PIL import Image
from plan.vision.making import brightening, close_to, frames_shown, saved, shown
from support.oracle import Asker, data_uri, differ, image_part, png, same

from mmserve.core import MediaRefused

QUESTION = "What is it?"
NUM_FRAMES = 20
RATE = 10
FRAMES = brightening(NUM_FRAMES, step=10)
LEVELS = tuple(10 * number for number in range(NUM_FRAMES))
REORDERED = {"crf": "1", "preset": "medium", "bf": "3", "x264-params": "open-gop=1"}
TURNED = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
"""EXIF, big-endian, that says no more than orientation 6."""


def _halves() -> np.ndarray:
    """Red on the left, green on the right, a white corner; 32 x 24."""
    pixels = np.zeros((24, 32, 3), np.uint8)
    pixels[:, :16], pixels[:, 16:] = (255, 0, 0), (0, 255, 0)
    pixels[:6, :8] = 255
    return pixels


def _solid(colour: str) -> bytes:
    """A picture of one colour."""
    return png(Image.new("RGB", (64, 64), colour))


def _animation(kind: str) -> bytes:
    """Five frames of rising brightness, a tenth of a second each."""
    first, *others = (Image.fromarray(frame) for frame in brightening(5))
    options = {"save_all": True, "append_images": others, "duration": 100}
    return saved(first, kind, **options)


def _clip(
    start: int,
    *,
    container: str = "mp4",
    options: dict[str, str] | None = None,
    spacing: int = 1,
) -> bytes:
    """Frame k is shown at (start + k ** spacing) / RATE seconds."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        settings = options or {"crf": "1", "preset": "ultrafast"}
        stream = out.add_stream("libx264", rate=RATE, options=settings)
        stream.height, stream.width = FRAMES[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        for number, pixels in enumerate(FRAMES):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts = start + number**spacing
            frame.time_base = Fraction(1, RATE)
            out.mux(stream.encode(frame))
        out.mux(stream.encode())
    return file.getvalue()


def _levels(frames: list[np.ndarray]) -> list[int]:
    """Brightness of frames, rounded to tens."""
    return [10 * round(float(frame.mean()) / 10) for frame in frames]


@pytest.mark.parametrize("kind", ["PNG", "AVIF", "GIF"])
def test_an_animation_sent_as_a_clip_is_not_its_first_picture(kind: str) -> None:
    """All its frames are seen at their times. Source: AstrBotDevs/AstrBot#10119."""
    frames, times, note = frames_shown(_animation(kind))
    assert [close_to(*pair) for pair in zip(frames, brightening(5), strict=True)] == [True] * 5
    assert times == pytest.approx((0, 0.1, 0.2, 0.3, 0.4))
    assert note is None


def test_an_animation_that_cannot_be_a_clip_is_refused(ask: Asker) -> None:
    """Its first picture is no answer about the rest. Source: deepbeepmeep/Wan2GP#1789."""
    part = {"type": "video_url", "video_url": {"url": data_uri(_animation("WEBP"))}}
    reply = ask.chat(part, QUESTION)
    assert reply.status == 400
    assert "animated WebP" in reply.error["message"]
    assert ask.chat(_animation("WEBP"), QUESTION).status == 200


@pytest.mark.parametrize("kind", ["PNG", "AVIF", "WEBP"])
def test_the_head_of_an_animation_is_refused_as_a_clip(kind: str) -> None:
    """Wherever its head ends. Source: AstrBotDevs/AstrBot#10119."""
    content = _animation(kind)
    for length in range(1, 64):
        with pytest.raises(MediaRefused):
            frames_shown(content[:length])


@pytest.mark.parametrize("kind", ["PNG", "AVIF", "WEBP"])
def test_a_still_sent_as_a_clip_is_still_its_one_frame(kind: str) -> None:
    """Only what says that it moves is taken for a clip. Source: AstrBotDevs/AstrBot#10119."""
    frames, times, _ = frames_shown(saved(Image.fromarray(_halves()).convert("RGBA"), kind))
    assert (len(frames), times) == (1, (0.0,))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_avif_is_turned_once(orientation: int) -> None:
    """Its own turn and EXIF's are one. Source: python-pillow/Pillow#8866."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture = Image.fromarray(_halves())
    shows = shown(saved(picture, "AVIF", quality=95, exif=exif.tobytes()))
    lossless = shown(saved(picture, "PNG", exif=exif.tobytes()))
    assert close_to(shows, lossless)


@pytest.mark.parametrize("prefix", [b"", b"Exif\0\0"])
def test_exif_of_webp_is_read_with_and_without_its_prefix(prefix: bytes) -> None:
    """Programs write it both ways. Source: bigcat88/pillow_heif#46."""
    picture = saved(Image.fromarray(_halves()), "WEBP", lossless=True, exif=prefix + TURNED)
    at = picture.index(b"EXIF")
    whole = picture[:at] + b"EXIF" + struct.pack("<I", len(prefix + TURNED)) + prefix + TURNED
    np.testing.assert_array_equal(shown(_riff(whole)), np.rot90(_halves(), -1))


def _riff(content: bytes) -> bytes:
    """The same with the length of the whole corrected."""
    return content[:4] + struct.pack("<I", len(content) - 8) + content[8:]


def test_exif_behind_a_pngs_pixels_is_read() -> None:
    """Some viewers write it when they turn. Source: python-pillow/Pillow#4529."""
    content = saved(_halves())
    checked = b"eXIf" + TURNED
    checksum = struct.pack(">I", zlib.crc32(checked))
    chunk = struct.pack(">I", len(TURNED)) + checked + checksum
    turned = shown(content[:-12] + chunk + content[-12:])
    np.testing.assert_array_equal(turned, np.rot90(_halves(), -1))


@pytest.mark.parametrize("container", ["mp4", "matroska", "mpegts"])
def test_a_clip_that_starts_late_counts_from_its_first_frame(container: str) -> None:
    """Times and frames are those of one from zero. Source: meta-pytorch/torchcodec#1209."""
    frames, times, _ = frames_shown(_clip(30, container=container), num_frames=5)
    assert _levels(frames) == [0, 50, 100, 140, 190]
    assert times == pytest.approx((0, 0.5, 1.0, 1.4, 1.9), abs=1e-3)


def _copied(content: bytes, since_s: Fraction, *, is_hidden: bool) -> bytes:
    """The packets of a clip without coding anew, as editors trim.

    What lies before a time is left out, or kept and hidden by an edit list.
    """
    file = io.BytesIO()
    with (
        av.open(io.BytesIO(content)) as source,
        av.open(file, "w", format="mp4", options={"avoid_negative_ts": "disabled"}) as out,
    ):
        stream = source.streams.video[0]
        copied = out.add_stream_from_template(stream)
        for packet in source.demux(stream):
            if packet.pts is None or packet.dts is None:
                continue
            if is_hidden:
                packet.pts -= int(since_s / packet.time_base)
                packet.dts -= int(since_s / packet.time_base)
            elif packet.pts * packet.time_base < since_s:
                continue
            packet.stream = copied
            out.mux(packet)
    return file.getvalue()


@pytest.mark.parametrize("since", [5, 10, 13])
@pytest.mark.parametrize("coding", ["ultrafast", "medium"])
def test_frames_that_a_trim_hides_are_neither_shown_nor_missed(since: int, coding: str) -> None:
    """However many groups are hidden. Source: vllm-project/vllm#48608."""
    options = {"crf": "1", "preset": coding, "g": "10"}
    trimmed = _copied(_clip(0, options=options), Fraction(since, RATE), is_hidden=True)
    frames, times, note = frames_shown(trimmed, num_frames=NUM_FRAMES)
    assert _levels(frames) == list(LEVELS[since:])
    assert times == pytest.approx([k / RATE for k in range(NUM_FRAMES - since)])
    assert note is None


@pytest.mark.parametrize("options", [None, REORDERED])
def test_frames_before_an_edit_list_are_not_shown(options: dict[str, str] | None) -> None:
    """What players skip is skipped. Source: blakeblackshear/frigate#3710."""
    frames, times, note = frames_shown(_clip(-5, options=options), num_frames=NUM_FRAMES)
    assert _levels(frames) == list(LEVELS[5:])
    assert times == pytest.approx([k / RATE for k in range(NUM_FRAMES - 5)])
    assert note is None


def test_reordered_frames_keep_their_order_and_times() -> None:
    """Also where groups overlap. Source: rerun-io/rerun#8029."""
    frames, times, _ = frames_shown(_clip(0, options=REORDERED), num_frames=NUM_FRAMES)
    assert _levels(frames) == list(LEVELS)
    assert times == pytest.approx([k / RATE for k in range(NUM_FRAMES)])


def test_times_at_a_variable_rate_are_the_containers() -> None:
    """No frame's time is its number over a rate. Source: Breakthrough/PySceneDetect#569."""
    frames, times, _ = frames_shown(_clip(0, spacing=2), times_s=(0.05, 3.0, 10.1))
    assert _levels(frames) == [0, 50, 100]
    assert times == pytest.approx((0.0, 2.5, 10.0))


def test_a_picture_needs_no_words(ask: Asker) -> None:
    """Alone or between empty texts, it is one. Source: cubist38/mlx-openai-server#18."""
    alone = ask.chat(_solid("red"))
    same(alone, ask.chat("", _solid("red"), ""))
    differ(alone, ask.chat(_solid("blue")))


def test_pictures_in_turns_get_their_own_answers(ask: Asker) -> None:
    """Same words, same size, warm: never the other's. Source: LMCache/LMCache#4086."""
    cold = {colour: ask.cold(_solid(colour), QUESTION) for colour in ("red", "blue")}
    differ(cold["red"], cold["blue"])
    for colour in ("red", "blue", "blue", "red"):
        same(ask.chat(_solid(colour), QUESTION), cold[colour])


def test_a_picture_that_cannot_be_fetched_is_an_error(ask: Asker, media_host) -> None:
    """And no empty answer. Source: raullenchai/Rapid-MLX#457."""
    address = media_host.put("/there.png", _solid("red")).replace("there", "gone")
    replies = [ask.chat(image_part(address), QUESTION, stream=flag) for flag in (False, True)]
    assert [400 <= reply.status < 500 for reply in replies] == [True, True]
    assert "image 1" in replies[0].error["message"]


def test_a_clip_without_its_first_key_frame_is_served_from_the_next() -> None:
    """What does not decode is told in a note. Source: dmlc/decord#82."""
    options = {"crf": "1", "preset": "ultrafast", "g": "10"}
    headless = _copied(_clip(0, options=options), Fraction(1, 2), is_hidden=False)
    frames, _, note = frames_shown(headless, num_frames=NUM_FRAMES)
    assert _levels(frames) == list(LEVELS[10:])
    assert note == "5 of 15 frames were unreadable"
