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


def test_the_rows_own_chance_wins():
    """A row's n, temperature, top_p, top_k and seed are those of the request."""
    own = row(num_samples=3, temperature=0.5, top_p=0.9, top_k=7, seed=1)
    sampling = request_of(own, 0, AskSettings(temperature=1.0, seed=2)).sampling
    assert (sampling.n, sampling.temperature, sampling.seed) == (3, 0.5, 1)
    assert (sampling.top_p, sampling.top_k) == (0.9, 7)
    silent = request_of(row(), 0, AskSettings(temperature=1.0, seed=2)).sampling
    assert (silent.n, silent.temperature, silent.seed, silent.top_k) == (1, 1.0, 2, -1)


def test_the_system_speaks_first():
    """The row's system text, else that of the settings, is the first turn."""
    settings = AskSettings(system="Be kind.")
    first = [request_of(one, 0, settings).parts[0] for one in (row(), row(system="Be brief."))]
    assert first == [Turn("system", (TextPart(text),)) for text in ("Be kind.", "Be brief.")]
    assert len(request_of(row(), 0, PLAIN).parts) == 2


def test_a_conversation_holds_what_was_said():
    """Each turn is asked after the earlier ones and their answers; media stand first."""
    talk = row(questions=("a?", "b?", "c?"), is_conversation=True)
    clip = VideoPart(PathSource("c.mp4"))
    assert request_of(talk, 0, PLAIN).parts[:-1] == (Turn("user", (clip, TextPart("a?"))),)
    assert request_of(talk, 2, PLAIN, ["A", ""]).parts == (
        Turn("user", (clip, TextPart("a?"))),
        Turn("assistant", (TextPart("A"),)),
        Turn("user", (TextPart("b?"),)),
        Turn("assistant", ()),
        Turn("user", (TextPart("c?"),)),
        Turn("assistant", (), is_open=True),
    )


@pytest.mark.parametrize(("is_conversation", "answers"), [(True, ()), (False, ("A",))])
def test_answers_must_fit_the_turn(is_conversation, answers):
    """A turn without the answers before it is no request, nor a lone question with some."""
    with pytest.raises(ValueError, match=r"shorter|longer"):
        request_of(row(is_conversation=is_conversation), 1, PLAIN, answers)


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
