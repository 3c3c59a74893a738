"""`mmserve demo`, and the samples it asks about."""

import io
import json

import av
import numpy as np
import pytest
from PIL import Image
from support.scripted_client import ScriptedClient, question_of
from typer.testing import CliRunner

from mmserve.cli import app
from mmserve.cli.samples import load_samples, sample_request
from mmserve.core import Finish, ImagePart, VideoPart
from mmserve.testing.clips import clip
from mmserve.testing.scenes import scene

TRUTH = dict(pair for sample in load_samples() for pair in sample.questions)


class CountingClient(ScriptedClient):
    """Answers truly, except about the number; one decode a medium, as its counters say."""

    def __init__(self):
        super().__init__(self.answer)

    def answer(self, request):
        """The true answer in other letters, or 12 for the number."""
        question = question_of(request)
        return "12" if "number" in question else f" {TRUTH[question].upper()}."

    def counters(self):
        """Counts from what was asked."""
        media = {ticket.request.parts[0].parts[0] for ticket in self.tickets}
        return {
            "media_decodes_total": len(media),
            "encoded_items_total": len(media),
            "prompt_tokens_computed_total": 6 * len(self.tickets),
            "prompt_tokens_cached_total": 4 * len(self.tickets),
        }


def demo(*flags: str, client: ScriptedClient | None = None):
    """The result of `mmserve demo` in 80 columns."""
    own = client or CountingClient()
    return CliRunner().invoke(
        app, ["demo", *flags], obj=lambda config: own, env={"COLUMNS": "80"}
    )


def test_json_is_one_object_with_everything():
    """`--json` gives the questions, answers, truth, tokens, times and costs."""
    shown = json.loads(demo("--json").stdout)
    assert (shown["model"], shown["right"], shown["questions"]) == ("scripted", 9, 10)
    assert [part["media"] for part in shown["parts"]] == ["scene.png", "clip.mp4"]
    assert shown["parts"][0]["answers"][0] == {
        "question": "How many objects are in the picture?",
        "answer": "5.",
        "expected": "5",
        "is_right": True,
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "first_token_ms": 1.5,
    }
    assert shown["parts"][0]["cost"] == {
        "decoded": 1,
        "encoded": 1,
        "computed_tokens": 36,
        "cached_tokens": 24,
    }


def test_the_table_fits_80_columns():
    """No line is wider than a terminal, and every question is there."""
    lines = demo().stdout.splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert "5 of 6 right. Decoded once, 1 picture encoded;" in text
    assert "of 60 prompt tokens, 36 were computed." in text


def test_a_wrong_answer_is_shown_as_wrong():
    """The table says what would have been right."""
    assert "no: 93" in demo().stdout


def test_a_pictures_first_question_is_asked_alone():
    """The others come after its answer; a clip's all at once."""
    client = CountingClient()
    seen = []
    submit = client.submit

    def watched(request):
        ticket = submit(request)
        inner = ticket.outputs

        def outputs():
            seen.append(len(client.tickets))
            return inner()

        ticket.outputs = outputs
        return ticket

    client.submit = watched
    demo(client=client)
    assert seen == [1, 6, 6, 6, 6, 6, 10, 10, 10, 10]


def test_a_stopped_answer_ends_the_demo():
    """An engine that fails is told, with exit code 1."""
    result = demo(client=ScriptedClient(lambda request: Finish("abort")))
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")


def test_samples_exist_and_are_named_by_kind():
    """Both files ship; a picture is asked about as a picture, a clip as a clip."""
    samples = load_samples()
    assert all(sample.path.is_file() for sample in samples)
    parts = [sample_request("x", sample, 0).parts[0].parts[0] for sample in samples]
    assert [type(part) for part in parts] == [ImagePart, VideoPart]


def test_the_sample_picture_is_the_scene_it_says():
    """The stored picture is that of its seed, and its answers are true of that scene."""
    sample = load_samples()[0]
    made = scene(1000003)
    with Image.open(sample.path) as stored:
        difference = np.abs(np.asarray(stored, float) - np.asarray(made.image, float)).mean()
    layout = made.layout
    truth = dict(sample.questions)
    assert difference < 2
    assert truth["How many objects are in the picture?"] == str(len(layout.things))
    assert truth["What is at the left?"] == layout.at("left").phrase
    assert truth["What number is written?"] == str(layout.number)
    assert [(t.place, t.colour) for t in layout.things if t.shape == "circle"] == [
        ("centre", truth["What colour is the circle?"])
    ]
    stars = [thing for thing in layout.things if thing.shape == "star"]
    assert (len(stars), truth["Are there more stars or circles?"]) == (2, "stars")
    assert [thing.place for thing in stars if thing.colour == "red"] == [
        truth["Where is the red star?"]
    ]


def test_the_sample_clip_is_the_story_it_says():
    """The stored clip shows its story, and its answers are true of it."""
    sample = load_samples()[1]
    made = clip(1000012)
    with av.open(io.BytesIO(sample.path.read_bytes())) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    differences = [
        np.abs(frame.astype(float) - np.asarray(picture, float)).mean()
        for frame, picture in zip(frames, made.frames, strict=True)
    ]
    by_kind = {question.kind: question.answer for question in made.questions}
    truth = dict(sample.questions)
    assert max(differences) < 6
    assert truth["What changed?"] == by_kind["change"]
    assert truth["In which frame did the blue square appear?"] == by_kind["appeared_in"]
    assert truth["How many objects are there at the start?"] == by_kind["count_start"]
    assert truth["How many objects are there at the end?"] == by_kind["count_end"]


@pytest.mark.parametrize("sample", load_samples(), ids=lambda sample: sample.name)
def test_samples_are_small(sample):
    """They ship with the program."""
    assert sample.path.stat().st_size < 200_000
