"""`mmserve show vision FILE`: what the model will see, over a real engine."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
from PIL import Image
from plan.vision.making import brightening, clip_of, noise, saved, with_orientation
from typer.testing import CliRunner

from mmserve.cli import app
from mmserve.cli.vision import part_of
from mmserve.core import BytesSource, ImagePart, Request, SamplingParams, VideoPart
from mmserve.engine import collect


@pytest.fixture
def look(engine, tmp_path):
    """Looks at a file of this name and content."""

    def invoke(name: str, content: bytes, *flags: str):
        path = tmp_path / name
        path.write_bytes(content)
        command = ["show", "vision", str(path), *flags]
        return CliRunner().invoke(app, command, obj=lambda config: nullcontext(engine))

    return invoke


def prompt_tokens(engine, part) -> int:
    """Tokens of media that a request with the part is charged with."""
    request = Request(request_id="r", parts=(part,), sampling=SamplingParams(max_new_tokens=0))
    usage = collect(engine.submit(request).outputs()).usage
    return usage.image_tokens + usage.video_tokens


def test_a_picture_is_shown_upright_with_its_tokens_and_costs(look, engine):
    """The size after orientation, tokens as a request has them, and each stage's cost."""
    content = saved(Image.fromarray(noise(32, 48)), "JPEG", exif=with_orientation(6))
    shown = json.loads(look("p.jpg", content, "--json").stdout)
    (item,) = shown["items"]
    assert (item["width"], item["height"], item["timestamps_s"]) == (32, 48, [])
    assert "turned by orientation 6" in shown["source"]
    assert shown["prompt_tokens"] == prompt_tokens(engine, ImagePart(BytesSource(content)))
    assert item["num_features"] == shown["prompt_tokens"]
    costs = [shown["fetch_ms"], shown["probe_ms"], item["decode_ms"], item["preprocess_ms"]]
    assert min(costs) >= 0 < shown["encode_ms"]
    assert len(item["identity"]) == 32


def test_frames_of_a_clip_are_shown_with_their_times(look, engine):
    """Each frame has its time and identity; the note of a damaged clip would be shown too."""
    content = clip_of(brightening(10))
    shown = json.loads(look("c.mp4", content, "--num-frames", "4", "--json").stdout)
    assert [item["timestamps_s"] for item in shown["items"]] == [[0.0], [0.6], [1.2], [1.8]]
    assert len({item["identity"] for item in shown["items"]}) == 4
    part = VideoPart(BytesSource(content), num_frames=4)
    assert shown["prompt_tokens"] == prompt_tokens(engine, part)


def test_the_table_names_every_stage(look):
    """For people: a row an item, and what fetching to encoding cost."""
    result = look("p.png", saved(noise(32, 48)))
    assert result.exit_code == 0
    assert "PNG picture, 48 x 32" in result.stdout
    for stage in ("fetch", "headers", "decode", "preprocess", "encode"):
        assert f"{stage} " in result.stdout


def test_a_bad_file_is_a_message(look):
    """A file that cannot be read says why, without a traceback."""
    result = look("p.png", b"\x89PNG\r\n\x1a\n")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "cut short" in result.stderr


def test_flags_of_another_room_are_refused_beside_a_file(look):
    """What a look would ignore is an error."""
    result = look("p.png", saved(noise(32, 48)), "--regex", "a")
    assert result.exit_code == 2
    assert "--regex is for" in result.stderr


@pytest.mark.parametrize("ending", ["mp4", "MKV", "m2ts", "mts", "ts", "h265", "264", "mjpeg"])
def test_clips_are_known_by_their_endings(ending):
    """A file named as clips are is looked at as a clip."""
    assert isinstance(part_of(Path(f"a.{ending}"), None, None), VideoPart)
    assert isinstance(part_of(Path("a.jpeg"), None, None), ImagePart)
