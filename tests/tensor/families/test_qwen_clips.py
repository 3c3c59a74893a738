"""Clips of Qwen-VL: what windows share, what time is, what bounds do, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import transformers
from support.families.qwen_checkpoints import CLASSES, tiny_qwen_vl
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from mmserve.core import BadRequest, MediaRefused, ModelRefused, UnsupportedModel
from mmserve.vision.families.qwen_vl import QwenVlProcessor, load
from mmserve.vision.families.qwen_vl.clips import frame_gap, groups, timestamp
from mmserve.vision.families.qwen_vl.settings import clip_settings, picture_settings
from mmserve.vision.processor import Bounds, FrameFacts, ItemPlan

FAMILIES = tuple(CLASSES)
FREE = Bounds()


def _ours(name: str) -> QwenVlProcessor:
    directory = tiny_qwen_vl(name)
    return load(directory, json.loads((directory / "config.json").read_text()))


def _sampled(num: int, rate: int, of: Fraction, start: int = 0) -> list[FrameFacts]:
    """The frames on screen at each 1 / rate seconds of a clip of so many frames a second."""
    points = (Fraction(start + k, rate) for k in range(num))
    return [FrameFacts(90, 60, (point * of).__floor__() / of) for point in points]


def _keys(plans: tuple[ItemPlan, ...], frames: list[FrameFacts]) -> list[tuple[object, ...]]:
    """What tells an item from others: its recipe and its frames."""
    return [(plan.recipe, *(frames[place].time for place in plan.frames)) for plan in plans]


@pytest.mark.parametrize("of", [Fraction(30000, 1001), Fraction(25), Fraction(24), Fraction(2)])
@pytest.mark.parametrize("name", FAMILIES)
def test_sliding_windows_share_all_but_new_groups(name: str, of: Fraction) -> None:
    """A window that moved by a group has one item that the window before had not."""
    processor = _ours(name)
    seen: set[tuple[object, ...]] = set()
    for start in range(0, 60, 2):
        frames = _sampled(8, 2, of, start)
        keys = _keys(processor.clip(frames, FREE), frames)
        assert len(set(keys) - seen) == (4 if start == 0 else 1)
        seen |= set(keys)


@pytest.mark.parametrize("of", [Fraction(30000, 1001), Fraction(25), Fraction(2)])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_growing_clip_shares_its_prefix(name: str, of: Fraction) -> None:
    """With two frames more, all items of before come first, if frames stay as large."""
    processor = _ours(name)
    limits = replace(processor.clip_limits.limits, max_pixels=10**6)
    clip_limits = replace(processor.clip_limits, limits=limits)
    processor = replace(processor, clip_limits=clip_limits)
    before: tuple[ItemPlan, ...] = ()
    for num in range(4, 22, 2):
        plans = processor.clip(_sampled(num, 2, of), FREE)
        assert plans[: len(before)] == before
        before = plans


@pytest.mark.parametrize("name", FAMILIES)
def test_a_clip_of_one_frame_is_one_group(name: str) -> None:
    """Its frame stands for both, with the tokens of a pair."""
    processor = _ours(name)
    one = processor.clip([FrameFacts(90, 60, Fraction(3))], FREE)
    two = processor.clip([FrameFacts(90, 60, Fraction(3))] * 2, FREE)
    assert [plan.frames for plan in one] == [(0,)]
    assert one[0].layout == two[0].layout


def test_time_is_steps_or_seconds_or_words() -> None:
    """Four frames, one each 1.5 s: 3 s between groups, 5 positions a second."""
    frames = [FrameFacts(90, 60, Fraction(3, 2) * k) for k in range(4)]
    layouts = {n: [plan.layout for plan in _ours(n).clip(frames, FREE)] for n in FAMILIES}
    times = {
        name: [(found.grid.time, found.grid.is_first) for found in some if found.grid]
        for name, some in layouts.items()
    }
    assert times == {
        "qwen2_vl": [(0, True), (1, False)],
        "qwen2_5_vl": [(0, True), (15, False)],
        "qwen3_vl": [(0, True), (0, True)],
    }
    words = [found.pieces[0] for found in layouts["qwen3_vl"]]
    assert words == ["<0.8 seconds><|vision_start|>", "<3.8 seconds><|vision_start|>"]


def test_other_rates_are_other_items_where_positions_follow_them() -> None:
    """The same frames twice as fast stand elsewhere, so their KV is kept apart."""
    slow, fast = ([FrameFacts(90, 60, Fraction(k, n)) for k in range(4)] for n in (1, 2))
    recipes = {n: _ours(n).clip(slow, FREE) == _ours(n).clip(fast, FREE) for n in FAMILIES}
    assert recipes == {"qwen2_vl": True, "qwen2_5_vl": False, "qwen3_vl": False}


def test_the_gap_is_the_simplest_that_explains_the_frames() -> None:
    """Rounded to frames of the clip, times still give the gap of the grid."""
    found = {
        (num, of): frame_gap([f.time for f in _sampled(num, rate, of)])
        for num, rate, of in (
            (8, 2, Fraction(30000, 1001)),
            (5, 2, Fraction(25)),
            (9, 5, Fraction(24)),
            (4, 3, Fraction(10)),
        )
    }
    assert list(found.values()) == [*[Fraction(1, 2)] * 2, Fraction(1, 5), Fraction(1, 3)]
    assert frame_gap([Fraction(0), Fraction(7, 24), Fraction(14, 24)]) == Fraction(7, 24)
    assert frame_gap([Fraction(5)]) == 1
    late = [Fraction(0), Fraction(1, 10), Fraction(9)]
    assert 0 < frame_gap(late) < 9


def test_groups_and_their_times() -> None:
    """An odd frame is a group; a group's time is the middle of its frames'."""
    assert groups(5, 2) == [(0, 1), (2, 3), (4,)]
    assert timestamp([Fraction(1, 3), Fraction(2, 3)]) == "<0.5 seconds>"
    assert timestamp([Fraction(7)]) == "<7.0 seconds>"


@pytest.mark.parametrize("name", FAMILIES)
def test_bounds_narrow_the_limits(name: str) -> None:
    """A picture or frame within bounds has another recipe, and no more pixels than asked."""
    processor = _ours(name)
    frames = [FrameFacts(640, 480, Fraction(k)) for k in range(4)]
    for bound in (5000, 9000):
        plans = [
            processor.picture(640, 480, Bounds(max_pixels=bound)),
            *processor.clip(frames, Bounds(max_pixels=bound)),
        ]
        for plan in plans:
            _, height, width = plan.recipe[:3]
            assert int(height) * int(width) <= bound
    large = processor.picture(30, 30, Bounds(min_pixels=20000))
    assert large.num_patches * processor.patches.patch**2 >= 20000


@pytest.mark.parametrize(
    ("bounds", "field"),
    [
        (Bounds(max_pixels=500), "max_pixels"),
        (Bounds(min_pixels=10**8), "min_pixels"),
        (Bounds(max_pixels=8000, min_pixels=9000), "min_pixels"),
    ],
)
def test_impossible_bounds_are_refused(bounds: Bounds, field: str) -> None:
    """Bounds outside of the model's limits are refused by name, with what can be had."""
    processor = _ours("qwen2_vl")
    with pytest.raises(BadRequest, match=field):
        processor.picture(300, 200, bounds)
    with pytest.raises(BadRequest, match=field):
        processor.clip([FrameFacts(300, 200, Fraction(0))] * 2, bounds)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_strip_is_refused(name: str) -> None:
    """A picture more than 200 times as long as wide is refused, one of 200 times is not."""
    processor = _ours(name)
    assert processor.picture(10, 2000, FREE).layout.grid
    with pytest.raises(MediaRefused, match="200 times"):
        processor.picture(10, 2001, FREE)


def test_settings_without_files_are_those_of_the_classes(tmp_path: Path) -> None:
    """A directory that says nothing is read as transformers' classes are made."""
    limits, _ = picture_settings(tmp_path)
    want = Qwen2VLImageProcessorPil()
    assert (limits.min_pixels, limits.max_pixels) == (
        want.size["shortest_edge"],
        want.size["longest_edge"],
    )
    for name, clips in (
        ("qwen2_vl", transformers.Qwen2VLVideoProcessor()),
        ("qwen3_vl", transformers.Qwen3VLVideoProcessor()),
    ):
        found, patches = clip_settings(tmp_path, name)
        size = clips.size
        bounds = (found.limits.min_pixels, found.limits.max_pixels)
        assert bounds == (size["shortest_edge"], size["longest_edge"])
        assert (patches.patch, patches.merge) == (clips.patch_size, clips.merge_size)
        assert (patches.mean, patches.std) == (tuple(clips.image_mean), tuple(clips.image_std))


@pytest.mark.parametrize(
    "settings",
    [
        {"min_pixels": 6272, "max_pixels": 100352},
        {"size": {"min_pixels": 6272, "max_pixels": 100352}},
        {"size": {"shortest_edge": 6272, "longest_edge": 100352}},
        {"size": {"shortest_edge": 1, "longest_edge": 2}, "min_pixels": 6272}
        | {"max_pixels": 100352},
    ],
)
def test_both_spellings_of_limits_are_read(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Older and newer settings give the same limits, of clips too if no file is theirs."""
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    limits, _ = picture_settings(tmp_path)
    clips, _ = clip_settings(tmp_path, "qwen2_vl")
    assert (limits.min_pixels, limits.max_pixels) == (6272, 100352)
    assert clips.limits == limits


def test_a_cap_is_read(tmp_path: Path) -> None:
    """`cap_pixels_per_frame` bounds frames by tokens, 768 each where none are given."""
    settings = {"cap_pixels_per_frame": True, "video_processor_type": "Qwen3VLVideoProcessor"}
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(settings))
    assert clip_settings(tmp_path, "qwen3_vl")[0].max_tokens == 768


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"image_processor_type": "SiglipImageProcessor"}, UnsupportedModel, "Siglip"),
        ({"do_resize": False}, UnsupportedModel, "do_resize"),
        ({"size": {"height": 3, "width": 4}}, UnsupportedModel, "height"),
        ({"min_pixels": 10**9}, ModelRefused, "minimum"),
        ({"patch_size": 15}, ModelRefused, "patches"),
        ({"merge_size": 1}, ModelRefused, "patches"),
    ],
)
def test_settings_of_other_models_are_refused(
    tmp_path: Path, settings: dict[str, Any], error: type[Exception], words: str
) -> None:
    """What the family does not do is refused at load, by name."""
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(error, match=words):
        load(tmp_path, {"model_type": "qwen2_vl"})
