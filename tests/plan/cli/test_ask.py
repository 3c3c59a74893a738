"""`mmserve ask`."""

import json

import pytest
from support.scripted_client import ScriptedClient, question_of
from typer.testing import CliRunner

from mmserve.cli import app
from mmserve.cli.ask import AnswerForm, read_constraint
from mmserve.core import (
    BadRequest,
    Constraint,
    ContextTooLong,
    Finish,
    ImagePart,
    PathSource,
    TextPart,
    UrlSource,
    VideoPart,
)


def ask(*arguments: str, client: ScriptedClient | None = None):
    """The result of `mmserve ask`."""
    own = client or ScriptedClient()
    return CliRunner().invoke(app, ["ask", *arguments], obj=lambda config: own)


def test_answers_come_in_the_order_of_questions():
    """Each answer is a line of stdout."""
    assert ask("one", "two", "three").stdout == "ONE\nTWO\nTHREE\n"


def test_media_stand_before_the_question():
    """Pictures, then clips, then the question; paths and addresses."""
    client = ScriptedClient()
    ask("q", "--video", "c.mp4", "--image", "a.png", "--image", "http://h/b", client=client)
    turn = client.tickets[0].request.parts[0]
    assert turn.parts == (
        ImagePart(PathSource("a.png")),
        ImagePart(UrlSource("http://h/b")),
        VideoPart(PathSource("c.mp4")),
        TextPart("q"),
    )


def test_settings_reach_the_request():
    """Frames, length and temperature are the flags'."""
    client = ScriptedClient()
    arguments = ["q", "--video", "c", "--num-frames", "3", "--fps", "2"]
    ask(*arguments, "--max-tokens", "9", "--temperature", "0.5", client=client)
    request = client.tickets[0].request
    clip = request.parts[0].parts[0]
    sampling = request.sampling
    assert (clip.num_frames, clip.fps) == (3, 2.0)
    assert (sampling.max_new_tokens, sampling.temperature) == (9, 0.5)


def test_all_questions_are_handed_in_before_any_is_read():
    """So that they are answered together."""
    seen = []

    class Watched(ScriptedClient):
        def submit(self, request):
            ticket = super().submit(request)
            inner = ticket.outputs

            def outputs():
                seen.append(len(self.tickets))
                return inner()

            ticket.outputs = outputs
            return ticket

    ask("a", "b", "c", client=Watched())
    assert seen == [3, 3, 3]


def test_the_closing_line_counts_tokens():
    """What was cached is told on stderr, and not with --quiet."""
    assert "2 answers in " in ask("a", "b").stderr
    assert "8 of 20 prompt tokens from cache" in ask("a", "b").stderr
    assert ask("a", "--quiet").stderr == ""


def test_a_failed_question_does_not_hide_the_others():
    """Its error names the question; the rest is answered; exit code 1."""
    refusal = ContextTooLong("prompt has 900 tokens, limit 512", hint="ask less")
    client = ScriptedClient(lambda request: refusal if question_of(request) == "b" else "fine")
    result = ask("a", "b", "c", client=client)
    assert (result.exit_code, result.stdout) == (1, "fine\nfine\n")
    assert (
        "question 2:\nerror: prompt has 900 tokens, limit 512\nhint: ask less" in result.stderr
    )


def test_an_answer_that_was_stopped_is_a_failure():
    """An aborted answer is never taken for a whole one."""
    client = ScriptedClient(lambda request: Finish("abort"))
    assert ask("a", client=client).exit_code == 1


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (AnswerForm(), None),
        (AnswerForm(regex="[ab]"), Constraint("regex", "[ab]")),
        (AnswerForm(choices="yes, no"), Constraint("choices", '["yes", "no"]')),
        (
            AnswerForm(json_schema='{"type": "null"}'),
            Constraint("json_schema", '{"type": "null"}'),
        ),
    ],
)
def test_constraints(form, expected):
    """Each flag becomes the core's constraint."""
    assert read_constraint(form) == expected


def test_a_schema_may_be_a_file(tmp_path):
    """What does not begin with a brace is a file's name."""
    path = tmp_path / "schema.json"
    path.write_text(json.dumps({"type": "object"}))
    found = read_constraint(AnswerForm(json_schema=str(path)))
    assert found == Constraint("json_schema", '{"type": "object"}')


def test_a_grammar_may_be_a_file(tmp_path):
    """What defines no rule is a file's name."""
    path = tmp_path / "answer.gbnf"
    path.write_text('root ::= "a"\n')
    found = read_constraint(AnswerForm(ebnf=str(path)))
    assert found == read_constraint(AnswerForm(ebnf='root ::= "a"\n'))
    assert found == Constraint("ebnf", 'root ::= "a"\n')


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (AnswerForm(regex="a", choices="b"), "--regex and --choices are both given"),
        (AnswerForm(json_schema="{}", ebnf="b"), "--json-schema and --ebnf are both given"),
        (AnswerForm(json_schema="{"), "--json-schema is not JSON"),
    ],
)
def test_wrong_constraints_are_refused(form, text):
    """Two constraints, or a schema that is no JSON."""
    with pytest.raises(BadRequest, match=text):
        read_constraint(form)


def test_a_missing_schema_file_is_named():
    """The message holds the file's name."""
    result = ask("q", "--json-schema", "no/such.json")
    assert (result.exit_code, "no/such.json" in result.stderr) == (1, True)
