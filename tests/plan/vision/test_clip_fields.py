"""Streams whose pictures may come as two fields are told from those whose cannot."""

import io

import av
import pytest
from plan.vision.numbered import clip, encoded

from mmserve.core import MediaConfig
from mmserve.vision.clips.fields import FieldWatch
from mmserve.vision.video import probe_clip

X264 = {"preset": "ultrafast"}
FIELDS = {**X264, "x264-params": "tff=1"}
CODED = {
    "MP4": ("libx264", "mp4"),
    "Matroska": ("libx264", "matroska"),
    "transport": ("libx264", "mpegts"),
    "raw": ("libx264", "h264"),
}
LAYOUTS = ["yuv420p", "yuv422p", "yuv444p", "yuv420p10le"]


def is_whole(content: bytes) -> bool:
    """Whether only the file's digest stands for a clip's frames."""
    return probe_clip(content, MediaConfig()).is_whole


@pytest.mark.parametrize("name", list(CODED))
def test_h264_that_allows_fields_is_noticed(name):
    """Wherever parameter sets stand, they tell whether pictures may be fields."""
    codec, container = CODED[name]
    made = [encoded(codec, container, num=3, options=options) for options in (FIELDS, X264)]
    assert [is_whole(content) for content in made] == [True, False]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parameter_sets_of_every_profile_are_read(layout):
    """Profiles with other colours and depths have more to skip."""
    assert not is_whole(encoded("libx264", layout=layout, num=3, options=X264))


def test_mpeg2_that_allows_fields_is_noticed():
    """MPEG-2 says in its sequence extension that all pictures are whole, or does not."""
    made = [
        encoded("mpeg2video", "mpegts", options={"flags": flags})
        for flags in ("+ildct", "-ildct")
    ]
    assert [is_whole(content) for content in made] == [True, False]


class FakeCodec:
    """A codec of a name, with what its container keeps for it."""

    def __init__(self, name: str, extradata: bytes = b"") -> None:
        self.codec, self.canonical_name, self.extradata = self, name, extradata


@pytest.mark.parametrize("end", [1, 4, 6])
def test_cut_parameter_set_may_mean_fields(end):
    """What cannot be read to its end is taken for a stream of fields."""
    with av.open(io.BytesIO(clip("groups").content)) as container:
        extra = container.streams.video[0].codec_context.extradata
    size = int.from_bytes(extra[6:8], "big")
    unit = extra[8 : 8 + size]
    watch = FieldWatch(FakeCodec("h264"))
    watch.look(b"\0\0\1" + unit)
    assert not watch.is_possible
    watch.look(b"\0\0\1" + unit[:end])
    assert watch.is_possible


def test_vc1_always_may_be_fields():
    """A codec with fields that is not looked at is never trusted."""
    assert FieldWatch(FakeCodec("vc1")).is_possible
    assert not FieldWatch(FakeCodec("vp9")).is_possible
