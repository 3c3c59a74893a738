"""`mmserve show constrained`: an automaton and an answer; of a server, its grammars."""

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.scripted_client import ScriptedClient, question_of
from typer.testing import CliRunner

import mmserve
from mmserve.cli import app
from mmserve.cli.constrained import EXAMPLE
from mmserve.core import Aborted, Finish, ServerConfig
from mmserve.server import RunningServer

TABLETOP = Path(mmserve.__file__).parent / "assets" / "tabletop"
CARD = r'\{"name": "[a-z]{1,5}", "likes": (tea|coffee)\}'


class TabletopClient(ScriptedClient):
    """Has the tokens of `tabletop`, and answers by a rule."""

    def __init__(self, rule=lambda request: "b-2") -> None:
        super().__init__(rule)
        self.model = replace(self.model, path=str(TABLETOP), vocab_size=768, eos_token_ids=(2,))


def show(*arguments: str, client: ScriptedClient | None = None):
    """The command's result; there is no engine unless a client is given."""

    def opener(config):
        assert client is not None
        return client

    return CliRunner().invoke(app, ["show", "constrained", *arguments], obj=opener)


def drawn(*arguments: str, client: ScriptedClient | None = None) -> str:
    """What the command prints, of `TabletopClient` unless there is another."""
    result = show(*arguments, client=client or TabletopClient())
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def test_the_example_asks_the_model():
    """A record about the sample picture, its automaton and the steps of the model's answer."""
    text = '{"shape":"star","colour":"orange","size":"small"}'
    client = TabletopClient(lambda request: text)
    lines = drawn(client=client).splitlines()
    assert max(map(len, lines)) <= 80
    assert f"answer  {text}" in lines
    assert "13 tokens: 10 forced in 4 jumps, 3 drawn" in lines
    (ticket,) = client.tickets
    assert question_of(ticket.request) == "What is at the left?"
    assert ticket.request.sampling.constraint == EXAMPLE


def test_the_models_own_answer_to_a_prompt():
    """With a prompt and a form of one's own; a text model gets no picture."""
    client = TabletopClient()
    client.model = replace(client.model, image_token_id=None)
    text = drawn("--regex", "[a-z]-[0-9]", "--prompt", "Which?", client=client)
    assert "answer  b-2" in text
    (ticket,) = client.tickets
    assert question_of(ticket.request) == "Which?"
    assert len(ticket.request.parts[0].parts) == 1


def test_an_answer_that_is_given_or_drawn_by_chance():
    """The model is not asked; the same seed draws the same."""
    client = TabletopClient()
    given = drawn("--regex", CARD, "--answer", '{"name": "bo', client=client)
    assert 'answer  {"name": "bo' in given
    assert "cut before its end" in given
    one, other = (drawn("--regex", CARD, "--seed", "4", client=client) for _ in range(2))
    assert one == other
    assert client.tickets == []


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--choices", "tea, coffee"), 'choices  ["tea", "coffee"]'),
        (("--json-schema", '{"enum": ["tea"]}'), "there is no automaton to draw"),
        (("--ebnf", 'root ::= "tea" | "coffee"'), "there is no automaton to draw"),
    ],
)
def test_every_form_is_drawn(flags, text):
    """Choices as an automaton, the others as steps alone."""
    drawing = drawn(*flags, "--seed", "1")
    assert text in drawing
    assert "answer  " in drawing


def test_a_picture_and_an_object_for_machines(tmp_path):
    """The same as an SVG file, and as JSON."""
    path = tmp_path / "card.svg"
    result = show("--regex", CARD, "--seed", "1", "--svg", str(path), client=TabletopClient())
    assert (result.exit_code, result.stdout) == (0, "")
    assert ElementTree.fromstring(path.read_text()).tag.endswith("svg")
    told = json.loads(drawn("--regex", CARD, "--seed", "1", "--json"))
    assert told["constraint"] == {"kind": "regex", "value": CARD}
    assert told["automaton"]["places"][0]["routes"] == [
        {"chosen": "", "forced": '{"name": "', "target": 2}
    ]
    assert told["answer"]["is_whole"]
    assert (
        json.loads(drawn("--json-schema", "{}", "--seed", "1", "--json"))["automaton"] is None
    )


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("--regex", "("), 1, "unterminated subpattern"),
        (("--regex", "a", "--choices", "b"), 2, "are both given"),
        (("--regex", "a", "--answer", "b"), 2, "does not fit at character 0"),
        (("--answer", "a", "--seed", "1"), 2, "--answer and --seed are both given"),
        (("--json", "--svg", "-"), 2, "--json and --svg are both given"),
    ],
)
def test_what_cannot_be_drawn_is_an_error(arguments, code, text):
    """With the place, or the flags that do not go together."""
    result = show(*arguments, client=TabletopClient())
    assert (result.exit_code, result.stdout) == (code, "")
    assert text in result.stderr


@pytest.mark.parametrize(
    "fate", [Aborted("left alone"), Finish("error", error=Aborted("left alone"))]
)
def test_an_answer_that_fails_is_not_drawn(fate):
    """The error is told."""
    result = show(client=TabletopClient(lambda request: fate))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "left alone" in result.stderr


def test_a_server_draws_what_it_keeps():
    """Its grammars, as text or SVG; flags of an answer are refused with --url."""
    with RunningServer(ScriptedClient(), ServerConfig(port=0)) as server:
        result = show("--url", server.url)
        assert (result.exit_code, result.stdout) == (0, "a drawing of constrained\n")
        result = show("--url", server.url, "--svg", "-")
        assert result.stdout == "a drawing of constrained as svg\n"
        result = show("--url", server.url, "--regex", "a")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--regex is for `mmserve show constrained` without --url" in result.stderr


@pytest.mark.parametrize("flags", [("--seed", "1"), ("--json",), ("--choices", "a")])
def test_other_rooms_have_no_answers(flags):
    """Flags of an answer are refused where they would do nothing."""
    result = CliRunner().invoke(app, ["show", "radix", *flags])
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{flags[0]} is for" in result.stderr
