"""Rows as requests."""

import pytest

from mmserve.batch import AskSettings, Row, media_source, request_of
from mmserve.core import (
    Constraint,
    ImagePart,
    PathSource,
    TextPart,
    Turn,
    UrlSource,
    VideoPart,
)

PLAIN = AskSettings()


def row(**fields: object) -> Row:
    """A row about a clip."""
    base = {"line": 1, "row_id": "r", "questions": ("a?", "b?"), "video": "c.mp4"}
    return Row(**(base | fields))


def clip_of(request) -> VideoPart:
    """The clip of a request."""
    return request.parts[0].parts[0]


@pytest.mark.parametrize("place", ["a.mp4", "/x/b.mp4", "./http/a", "~/c.mp4", "a:b.mp4"])
def test_paths_are_local(place):
    """What is no address is a path."""
    assert media_source(place) == PathSource(place)


@pytest.mark.parametrize(
    "place", ["http://h/a", "HTTPS://h/a", "data:image/png;base64,x", "file:/etc/x", "s3://b/k"]
)
def test_addresses_go_through_the_guards(place):
    """Anything with a scheme is a client's address."""
    assert media_source(place) == UrlSource(place)


def test_the_prompt_is_media_question_and_an_open_turn():
    """One user turn with the clip first, then a turn to answer in."""
    request = request_of(row(), 1, PLAIN)
    user, assistant = request.parts
    assert user == Turn("user", (VideoPart(PathSource("c.mp4")), TextPart("b?")))
    assert assistant == Turn("assistant", (), is_open=True)


def test_pictures_come_in_order():
    """All pictures of a row stand before the question."""
    request = request_of(row(video=None, images=("a.png", "b.png")), 0, PLAIN)
    parts = request.parts[0].parts
    assert parts == (
        ImagePart(PathSource("a.png")),
        ImagePart(PathSource("b.png")),
        TextPart("a?"),
    )


def test_answers_are_greedy_and_bounded_by_default():
    """Without settings: temperature 0 and 128 tokens."""
    sampling = request_of(row(), 0, PLAIN).sampling
    assert (sampling.temperature, sampling.max_new_tokens) == (0.0, 128)


def test_the_rows_own_values_win():
    """A row's max_tokens and constraint replace the settings."""
    constraint = Constraint("regex", "a+")
    sampling = request_of(row(max_tokens=5, constraint=constraint), 0, PLAIN).sampling
    assert (sampling.max_new_tokens, sampling.constraint) == (5, constraint)


def test_settings_fill_in_sampling_of_frames():
    """A silent row is sampled as the settings say."""
    clip = clip_of(request_of(row(), 0, AskSettings(num_frames=4, fps=2.0)))
    assert (clip.num_frames, clip.fps) == (4, 2.0)


def test_a_rows_rate_replaces_both_settings():
    """A row that gives fps is not also bound by the settings' num_frames."""
    clip = clip_of(request_of(row(fps=1.0), 0, AskSettings(num_frames=4, fps=2.0)))
    assert (clip.num_frames, clip.fps) == (None, 1.0)


def test_questions_of_a_file_have_distinct_requests():
    """Line and question index name a request."""
    ids = {request_of(row(line=n), q, PLAIN).request_id for n in (1, 11) for q in (0, 1)}
    assert len(ids) == 4
