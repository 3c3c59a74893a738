"""A frame keeps its identity when its clip grows, and only then."""

import io
from fractions import Fraction
from itertools import combinations, pairwise

import av
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.vision.making import RawProcessor, new_plane
from plan.vision.numbered import clip, grown

from mmserve.core import BytesSource, MediaConfig, VideoPart
from mmserve.vision import MediaPlane
from mmserve.vision.clips.chain import digests_shown
from mmserve.vision.video import probe_clip

CONFIG = MediaConfig()
X264 = {"preset": "ultrafast", "x264-params": "keyint=10:min-keyint=10:scenecut=0"}
ORDERED = {**X264, "bf": "0"}
REORDERED = {**X264, "preset": "veryfast", "bf": "2"}
FRAGMENTS = {"movflags": "frag_every_frame+empty_moov+default_base_moof"}
LIVE = {"live": "1", "cluster_time_limit": "200"}
GROWING = {
    "fragmented MP4": ("libx264", "mp4", {"options": ORDERED, "mux": FRAGMENTS}),
    "fragmented MP4, reordered": ("libx264", "mp4", {"options": REORDERED, "mux": FRAGMENTS}),
    "transport": ("libx264", "mpegts", {"options": ORDERED}),
    "transport, reordered": ("libx264", "mpegts", {"options": REORDERED}),
    "Matroska": ("libx264", "matroska", {"options": ORDERED, "mux": LIVE}),
    "WebM": ("libvpx-vp9", "webm", {"mux": LIVE}),
    "raw H.264": ("libx264", "h264", {"options": ORDERED}),
    "raw MJPEG": ("mjpeg", "mjpeg", {"layout": "yuvj420p"}),
    "AVI": ("mpeg4", "avi", {}),
    "Flash": ("libx264", "flv", {"options": ORDERED}),
    "IVF": ("libvpx", "ivf", {}),
}


def digests_by_time(content: bytes) -> dict[Fraction, bytes]:
    """Digest of each frame of a clip, by when it is shown."""
    found = probe_clip(content, CONFIG)
    count = range(len(found.times.ticks))
    return {found.times.seconds(n): found.frame_digest(n) for n in count}


@pytest.mark.parametrize("name", list(GROWING))
def test_frames_keep_their_digest_in_a_longer_file(name):
    """A file to which frames were appended has the old frames' digests at their times."""
    codec, container, options = GROWING[name]
    part, rest = grown(codec, container, **options)
    before, after = digests_by_time(part), digests_by_time(part + rest)
    assert 15 <= len(before) < len(after) == 40
    assert {time: after[time] for time in before} == before
    assert all(before.values())


def test_frames_of_other_streams_have_other_digests():
    """No frame of a clip shares a digest with a frame of another one."""
    names = ("groups", "no b-frames", "full colour", "late mp4", "uneven mp4")
    found = [set(digests_by_time(clip(name).content).values()) for name in names]
    for one, other in combinations(found, 2):
        assert not one & other


@pytest.mark.parametrize("name", ["raw, reordered", "zeroed", "interlaced"])
def test_frames_without_a_stream_to_trust_have_the_files_identity(name):
    """Damaged, interlaced and reordered untimed streams have no digests of their frames."""
    found = probe_clip(clip(name).content, CONFIG)
    assert found.is_whole
    assert found.frame_digest(0) == b""


PLAIN = clip("no b-frames").content
with av.open(io.BytesIO(PLAIN)) as _container:
    PACKETS = [(packet.pos, packet.size) for packet in _container.demux(video=0) if packet.size]
DIGESTS = list(digests_by_time(PLAIN).values())


@given(place=st.integers(1, 39), at=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
@settings(max_examples=60)
def test_a_changed_byte_changes_all_frames_behind_it(place, at, flip):
    """A byte changed in a packet changes the digests of its frame and of all later ones."""
    start, size = PACKETS[place]
    changed = bytearray(PLAIN)
    changed[start + int(at * size)] ^= flip
    found = probe_clip(bytes(changed), CONFIG)
    digests = [found.frame_digest(n) for n in range(len(found.times.ticks))]
    assert not set(digests[place:]) & set(DIGESTS)
    assert found.is_whole or digests[:place] == DIGESTS[:place]


def test_a_frame_covers_all_that_is_shown_before_it():
    """A frame's digest is the link of the last packet decoded for what is shown until then."""
    links = [bytes([place]) * 16 for place in range(4)]
    shown = digests_shown([0, 30, 10, 20], links)
    assert [shown[at : at + 2] for at in range(0, 128, 32)] == ["00", "02", "03", "03"]


def test_a_second_packet_at_the_same_time_is_covered():
    """A packet appended at an old frame's time changes the frame, and the later ones."""
    links = [bytes([place]) * 16 for place in range(4)]
    before, after = digests_shown([0, 1, 2], links[:3]), digests_shown([0, 1, 2, 1], links)
    assert [before[at : at + 2] for at in range(0, 96, 32)] == ["00", "01", "02"]
    assert [after[at : at + 2] for at in range(0, 96, 32)] == ["00", "03", "03"]


def items_of(plane, content: bytes, **wishes):
    """Digest of each sampled frame by its time."""
    resolved = plane.resolve(VideoPart(BytesSource(content), **wishes), salt="", index=0)
    return {item.timestamp_s: item.digest for item in resolved.items}


def test_a_grown_clip_shares_its_pictures():
    """Frames on one grid have one identity in a clip and in the clip it grows to."""
    codec, container, options = GROWING["fragmented MP4"]
    plane = new_plane()
    before, rest = grown(codec, container, **options)
    part = items_of(plane, before, fps=5.0)
    whole = items_of(plane, before + rest, fps=5.0)
    plane.close()
    assert len(part) >= 8
    assert {time: whole[time] for time in part} == part


def test_windows_that_slide_share_their_pictures():
    """Two windows of one clip have the identities of the frames that both show."""
    plane = new_plane()
    windows = [
        items_of(plane, clip("groups").content, fps=5.0, start_s=start, end_s=start + 2.0)
        for start in (0.0, 0.4, 0.8)
    ]
    plane.close()
    for left, right in pairwise(windows):
        both = left.keys() & right.keys()
        assert len(both) == 8
        assert all(left[time] == right[time] for time in both)


def test_another_key_gives_other_identities():
    """The identity of a frame depends on the server's key."""
    found = []
    for key in (bytes(16), bytes(range(16))):
        plane = MediaPlane(CONFIG, RawProcessor(), model_fingerprint=b"model", key=key)
        found.append(set(items_of(plane, clip("groups").content).values()))
        plane.close()
    assert not found[0] & found[1]
