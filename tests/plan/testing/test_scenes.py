"""The generated scenes and clips: same from the same seed, and true to their ground truth."""

import io
import json
import re

import av
import numpy as np
import pytest

from mmserve.testing.clips import clip
from mmserve.testing.scenes import SCENE_SCHEMA, TEST_SEEDS, TRAIN_SEEDS, Scene, scene
from mmserve.testing.scenes_draw import PICTURE_PIXELS
from mmserve.testing.scenes_words import PLURALS
from mmserve.testing.scenes_world import COLOURS, MAX_THINGS, PLACES

SEEDS = TEST_SEEDS[:40]
CLIP_SEEDS = TEST_SEEDS[:12]


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    """Some held-out scenes."""
    return [scene(seed) for seed in SEEDS]


def answers(scenes: list[Scene], kind: str) -> list[tuple[Scene, str, str]]:
    """Every (scene, question, answer) of a kind."""
    return [(s, q.question, q.answer) for s in scenes for q in s.questions if q.kind == kind]


def test_a_scene_follows_from_its_seed() -> None:
    """The same seed gives the same pixels, truth and questions."""
    first, again = scene(SEEDS[0]), scene(SEEDS[0])
    assert first.image.tobytes() == again.image.tobytes()
    assert first.layout == again.layout
    assert [(q.question, q.answer) for q in first.questions] == [
        (q.question, q.answer) for q in again.questions
    ]


def test_a_clip_follows_from_its_seed() -> None:
    """The same seed gives the same frames and questions."""
    first, again = clip(CLIP_SEEDS[0]), clip(CLIP_SEEDS[0])
    assert [f.tobytes() for f in first.frames] == [f.tobytes() for f in again.frames]
    assert first.questions == again.questions


def test_seeds_differ(scenes: list[Scene]) -> None:
    """Different seeds give different pictures."""
    assert len({s.image.tobytes() for s in scenes}) == len(scenes)


def test_training_and_test_seeds_are_disjoint() -> None:
    """No seed is both trained on and measured on."""
    assert TRAIN_SEEDS.stop <= TEST_SEEDS.start


def test_pictures_have_one_size(scenes: list[Scene]) -> None:
    """Every picture is RGB of 288 pixels a side."""
    forms = {(s.image.mode, s.image.size) for s in scenes}
    assert forms == {("RGB", (PICTURE_PIXELS, PICTURE_PIXELS))}


def test_layouts_keep_their_limits(scenes: list[Scene]) -> None:
    """A scene has one to five things in raster order, at most one thing or number a place."""
    for made in scenes:
        places = [thing.place for thing in made.layout.things]
        assert 1 <= len(places) <= MAX_THINGS
        assert places == sorted(places, key=PLACES.index)
        assert made.layout.number_place not in places
        assert (made.layout.number is None) == (made.layout.number_place is None)


def test_about_half_of_the_scenes_have_a_number(scenes: list[Scene]) -> None:
    """Numbers are printed in some scenes and missing in others."""
    share = sum(s.layout.number is not None for s in scenes) / len(scenes)
    assert 0.25 < share < 0.75


def test_things_show_their_colour(scenes: list[Scene]) -> None:
    """A thing's cell holds many more saturated or extreme pixels than an empty cell."""
    for made in scenes:
        pixels = np.asarray(made.image, np.int16).reshape(3, 96, 3, 96, 3)
        spread = pixels.max(axis=(1, 3)) - pixels.min(axis=(1, 3))
        taken = [PLACES.index(t.place) for t in made.layout.things]
        assert all(spread.max(-1).ravel()[cell] > 60 for cell in taken)


def test_counts_are_true(scenes: list[Scene]) -> None:
    """The answer to "how many" is the number of things."""
    for made, _, answer in answers(scenes, "count"):
        assert answer == str(len(made.layout.things))


def test_counts_of_a_shape_are_true(scenes: list[Scene]) -> None:
    """The answer to "how many circles" is the number of circles."""
    for made, question, answer in answers(scenes, "count_shape"):
        shape = next(s for s, plural in PLURALS.items() if plural in question.lower())
        assert answer == str(sum(t.shape == shape for t in made.layout.things))


def test_places_are_true(scenes: list[Scene]) -> None:
    """Where a thing or the number is, something is."""
    for made, _, answer in answers(scenes, "where"):
        assert made.layout.at(answer) or made.layout.number_place == answer


def test_contents_are_true(scenes: list[Scene]) -> None:
    """What is said to be at a place is on the table."""
    for made, _, answer in answers(scenes, "what_at"):
        phrases = {t.phrase for t in made.layout.things}
        assert answer in {*phrases, "nothing", f"the number {made.layout.number}"}


@pytest.mark.parametrize("field", ["colour", "shape", "size"])
def test_attributes_are_true(scenes: list[Scene], field: str) -> None:
    """An attribute asked for is that of some thing in the scene."""
    for made, _, answer in answers(scenes, field):
        assert answer in {getattr(t, field) for t in made.layout.things}


def test_existence_by_colour_is_true(scenes: list[Scene]) -> None:
    """A colour said to be missing is missing, if nothing but the colour was asked for."""
    for made, question, answer in answers(scenes, "exists"):
        match = re.search(rf"an? ({'|'.join(COLOURS)}) object", question)
        if match:
            present = any(t.colour == match[1] for t in made.layout.things)
            assert answer == ("yes" if present else "no")


def test_existence_answers_are_balanced(scenes: list[Scene]) -> None:
    """Neither yes nor no is the safe guess."""
    said = [answer for _, _, answer in answers(scenes, "exists")]
    assert 0.3 < said.count("yes") / len(said) < 0.8


def test_numbers_are_true(scenes: list[Scene]) -> None:
    """The number asked for is the printed one, or none."""
    for made, _, answer in answers(scenes, "number"):
        assert answer == ("none" if made.layout.number is None else str(made.layout.number))


def test_descriptions_hold_the_whole_truth(scenes: list[Scene]) -> None:
    """The JSON answer lists every thing and the number, compactly."""
    for made, _, answer in answers(scenes, "describe"):
        said = json.loads(answer)
        expected = [
            {"place": t.place, "size": t.size, "colour": t.colour, "shape": t.shape}
            for t in made.layout.things
        ]
        assert said == {"objects": expected, "number": made.layout.number}
        assert answer == json.dumps(said, separators=(",", ":"))


def test_descriptions_satisfy_the_schema(scenes: list[Scene]) -> None:
    """The JSON answer is an instance of SCENE_SCHEMA."""
    jsonschema = pytest.importorskip("jsonschema")
    for _, _, answer in answers(scenes, "describe"):
        jsonschema.validate(json.loads(answer), SCENE_SCHEMA)


def test_follow_ups_have_a_history(scenes: list[Scene]) -> None:
    """A follow-up, and nothing else, comes after an earlier turn."""
    for made in scenes:
        for question in made.questions:
            assert bool(question.history) == (question.kind == "follow_up")


def test_comparisons_have_a_second_picture(scenes: list[Scene]) -> None:
    """A comparison of pictures, and nothing else, brings another picture."""
    for made in scenes:
        for question in made.questions:
            is_pair = question.kind == "compare_pictures"
            assert (question.other_image is not None) == is_pair


def test_wordings_vary(scenes: list[Scene]) -> None:
    """One kind of question is asked in many wordings."""
    assert len({question for _, question, _ in answers(scenes, "count")}) >= 8


def test_videos_decode_to_their_frames() -> None:
    """The MP4 is H.264 and decodes to the frames, up to coding loss."""
    for seed in CLIP_SEEDS[:3]:
        film = clip(seed)
        with av.open(io.BytesIO(film.mp4)) as container:
            assert container.streams.video[0].codec_context.name == "h264"
            decoded = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        assert len(decoded) == len(film.frames)
        for got, want in zip(decoded, film.frames, strict=True):
            assert np.abs(got.astype(int) - np.asarray(want)).mean() < 4


def test_one_thing_changes_in_a_clip() -> None:
    """Frames before the change show the first layout, the frame of the change does not."""
    for seed in CLIP_SEEDS:
        story = clip(seed).story
        layouts = story.layouts
        assert 4 <= len(layouts) <= 8
        assert all(layout == layouts[0] for layout in layouts[: story.frame - 1])
        assert layouts[story.frame - 1] != layouts[0]


def test_clip_answers_are_true() -> None:
    """Frame numbers, counts and directions follow from the story."""
    for seed in CLIP_SEEDS:
        film = clip(seed)
        said = {q.kind: q.answer for q in film.questions}
        assert said["count_end"] == str(len(film.story.layouts[-1].things))
        assert said["count_start"] == str(len(film.story.layouts[0].things))
        assert said["change"].startswith(f"{film.story.actor.phrase} {film.story.event}")
        assert said.get("direction", film.story.outcome) == film.story.outcome
        frames = [answer for kind, answer in said.items() if kind.endswith("_in")]
        assert frames in ([], [str(film.story.frame)])
