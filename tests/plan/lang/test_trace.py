"""Tracing: programs on placeholders, as graphs; and the constant prefix of `cache`."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from itertools import combinations

import pytest

import mmserve as sgl
from mmserve.core import BackendFailed, ProgramMisuse, UnsupportedByBackend
from mmserve.lang import ClientBackend
from mmserve.lang.backends.abilities import Abilities
from mmserve.testing.fake_client import FakeClient


@sgl.function
def judge(s, picture, essay, aspects=("clarity", "evidence")):
    """A program with all kinds of nodes."""
    s += sgl.system("You judge.")
    s += sgl.user(sgl.image(picture) + "Essay: " + essay)
    s += sgl.assistant(sgl.select("related", ["yes", "no"]))
    forks = s.fork(len(aspects))
    for fork, aspect in zip(forks, aspects, strict=True):
        fork += sgl.user(f"Judge its {aspect}.") + sgl.assistant(sgl.gen("judgement"))
    forks.join()
    s += sgl.user(s["judgement"][0] + s["judgement"][1])
    s += sgl.assistant(sgl.gen("grade"))
    return s["grade"]


def test_a_trace_holds_all_that_is_appended_in_order():
    """Texts, holes, media, calls, forks and joins are nodes; names lead to theirs."""
    graph = judge.trace()
    kinds = [node.kind for node in graph.nodes if node.kind != "turn"]
    assert kinds == [
        *("text", "image", "text", "hole", "select", "fork"),
        *("text", "gen", "text", "gen", "join", "hole", "hole", "gen"),
    ]
    assert graph.variables["grade"].kind == "gen"
    assert graph.variables["judgement"].kind == "join"
    assert graph.last_node is not None
    assert len(graph.last_node.print_graph_dfs().splitlines()) == len(graph.nodes)


def test_known_arguments_stand_in_the_graph():
    """A given value is not a hole."""
    graph = judge.trace(essay="On bees.")
    labels = [node.label for node in graph.nodes if node.kind == "text"]
    assert "On bees." in labels
    assert "essay" not in [node.label for node in graph.nodes if node.kind == "hole"]


def test_nothing_is_asked_and_no_file_is_opened(client: FakeClient):
    """A trace with a backend makes no call; a path that does not exist does no harm."""
    backend = ClientBackend(client)
    judge.trace(backend=backend, picture="/no/such/file.png")
    assert client.requests == []


def test_a_backend_refuses_what_it_cannot_do():
    """The refusal is that of a run."""

    class Poor(ClientBackend):
        @property
        def abilities(self):
            return Abilities()

    with pytest.raises(UnsupportedByBackend, match="select"):
        judge.trace(backend=Poor(FakeClient()))


@pytest.mark.parametrize(
    "body",
    [
        lambda s, q: "yes" if q else "no",
        lambda s, q: q == "x",
        lambda s, q: f"{q}!",
        lambda s, q: "".join([q]),
        lambda s, q: q.upper(),
        lambda s, q: list(q),
        lambda s, q: range(q),
        lambda s, q: q[0],
        lambda s, q: "x" in q,
        lambda s, q: q < 3,
        lambda s, q: float(q),
    ],
)
def test_needing_an_unknown_value_names_the_line(body):
    """A branch or a text on a placeholder raises, with file and line of the program."""
    with pytest.raises(ProgramMisuse, match=r"test_trace\.py line \d+: lambda s, q"):
        sgl.function(body).trace()


def test_answers_are_placeholders_too():
    """A branch on an answer cannot be traced."""

    @sgl.function
    def program(s):
        s += "x" + sgl.gen("a")
        if s["a"] == "yes":
            s += "!"

    with pytest.raises(ProgramMisuse, match="compares 'a'"):
        program.trace()


def test_a_program_called_inside_a_trace_is_traced(client: FakeClient):
    """A call of another program is a trace of it, and its answers are placeholders."""

    @sgl.function
    def inner(s, topic):
        s += "On " + topic + sgl.gen("text")

    @sgl.function
    def outer(s, topic):
        s += inner(topic)["text"] + "." + sgl.gen("end")

    graph = outer.trace()
    assert [node.kind for node in graph.nodes] == ["hole", "text", "gen"]
    assert client.requests == []


def test_drawings_show_every_node_and_no_boxes_overlap():
    """The text has a line a node within 80 columns; the SVG is well-formed."""
    graph = judge.trace()
    lines = graph.draw().splitlines()
    assert len(lines) == len(graph.nodes) + 1
    assert max(map(len, lines)) <= 80
    root = ElementTree.fromstring(graph.draw("svg"))
    boxes = [
        tuple(float(box.get(side, "0")) for side in ("x", "y", "width", "height"))
        for box in root.iter("{http://www.w3.org/2000/svg}rect")
        if box.get("height") == "22.0"
    ]
    assert len(boxes) == len(graph.nodes)
    for (x, y, width, height), (x2, y2, width2, height2) in combinations(boxes, 2):
        is_apart = x + width <= x2 or x2 + width2 <= x or y + height <= y2 or y2 + height2 <= y
        assert is_apart


def test_cache_computes_the_constant_prefix_only(client: FakeClient):
    """One call that generates nothing, with all that stands before the first unknown value."""

    @sgl.function
    def program(s, question):
        s += sgl.system("Be short.")
        s += sgl.user("Q: " + question) + sgl.assistant(sgl.gen("a"))

    program.cache(ClientBackend(client))
    (request,) = client.requests
    assert request.sampling.max_new_tokens == 0
    assert [turn.role for turn in request.parts] == ["system", "user"]
    assert request.parts[-1].is_open
    state = program.run("Why?", backend=client)
    assert state.get_meta_info("a")["cached_tokens"] >= len("Be short.")


def test_cache_runs_the_body_up_to_the_unknown_only(client: FakeClient):
    """Effects behind the prefix do not happen; a program without a prefix costs no call."""
    calls: list[str] = []

    @sgl.function
    def program(s, question):
        calls.append("before")
        s += question
        calls.append("after")

    program.cache(ClientBackend(client))
    assert calls == ["before"]
    assert client.requests == []


def test_the_text_form_is_stable():
    """What `print(graph)` shows of a small program."""

    @sgl.function
    def small(s, question):
        s += "Q: " + question + "\nA:" + sgl.gen("answer", stop="\n")

    assert re.sub(r" +\n", "\n", str(small.trace())) == (
        "small: 4 nodes\n"
        "%0   text   'Q: '\n"
        "%1   hole   question <- %0\n"
        "%2   text   '\\nA:' <- %1\n"
        "%3   gen    answer <- %2\n"
    )


def test_every_kind_of_parameter_is_traced():
    """Positional-only, with a default, open, keyword-only: each has what a run gives it."""

    @sgl.function
    def program(s, a, /, b, c="C", *rest, k, d="D", **more):
        s += a + b + c + k + d
        assert rest == ()
        assert more == {}

    shown = [(node.kind, node.label) for node in program.trace(k="K").nodes]
    assert shown == [("hole", "a"), ("hole", "b"), ("text", "C"), ("text", "K"), ("text", "D")]


def test_a_call_inside_a_trace_takes_what_a_run_takes():
    """Arguments by position and by name, open ones, and the run's own parameters."""

    @sgl.function
    def inner(s, first, *rest, **more):
        for text in (first, *rest, *more.values()):
            s += text

    @sgl.function
    def outer(s, topic):
        return inner(topic, "b", z="c", temperature=0, max_new_tokens=4)

    assert [node.label for node in outer.trace().ret_value.nodes] == ["topic", "b", "c"]


def test_thinking_is_a_placeholder_too():
    """A traced program may append the thinking that a run would part from the answer."""

    @sgl.function
    def program(s, q):
        s += q + sgl.separate_reasoning(sgl.gen("a"))
        s += s["a_reasoning_content"]

    graph = program.trace()
    assert graph.nodes[-1].label == "a_reasoning_content"
    assert graph.variables["a_reasoning_content"] is graph.variables["a"]


@pytest.mark.parametrize(
    "body",
    [
        lambda s, q: s.__iadd__({"a": "b"}[q]),
        lambda s, q: s.__iadd__("a" + sgl.gen("x", max_tokens=q)),
        lambda s, q: s.fork(q),
        lambda s, q: s.__iadd__("a" + sgl.select("x", [q, "b"])),
        lambda s, q: len(s.messages()),
        lambda s, q: s.partial_text().upper(),
        lambda s, q: [text.strip() for text in s.text_iter()],
    ],
)
def test_values_that_must_be_known_name_the_line_too(body):
    """A table, a number, options, messages: a trace never goes on with a wrong value."""
    with pytest.raises(ProgramMisuse, match=r"unknown.*test_trace\.py line \d+: lambda s, q"):
        sgl.function(body).trace()


def test_a_trace_under_a_backend_refuses_media_and_unknown_text():
    """What an argument will be counts, though it is not known yet."""

    @sgl.function
    def picture(s, path):
        s += sgl.user(sgl.image(path))

    @sgl.function
    def bare(s, text):
        s += text

    class Blind(ClientBackend):
        abilities = Abilities(has_pictures=False)

    backend = Blind(FakeClient())
    with pytest.raises(UnsupportedByBackend, match="pictures"):
        picture.trace(backend=backend)
    with pytest.raises(UnsupportedByBackend, match="outside turns"):
        bare.trace(backend=backend)


def test_an_unknown_value_never_runs(client: FakeClient):
    """A program that runs inside a trace refuses what the trace does not know."""

    @sgl.function
    def inner(s, q):
        s += q + sgl.gen("a")

    @sgl.function
    def outer(s, q):
        return inner.run(q, backend=client)["a"]

    with pytest.raises(ProgramMisuse, match="'q' is unknown"):
        outer.trace()
    assert client.requests == []


def test_cache_ends_where_the_program_needs_an_unknown_value(client: FakeClient):
    """What stands before a branch on an argument is constant, and is computed."""

    @sgl.function
    def program(s, question):
        s += "Be short. "
        if question:
            s += question + sgl.gen("a")

    program.cache(client)
    assert [request.parts[0].text for request in client.requests] == ["Be short. "]


def test_cache_raises_what_its_call_raises(client: FakeClient):
    """It is asked for, so its failure is told."""

    @sgl.function
    def program(s, question):
        s += "BOOM" + question

    with pytest.raises(BackendFailed):
        program.cache(client)


def test_pin_names_its_successor():
    """Programs of the paper's time are told the word of today."""
    program = sgl.function(lambda s: None)
    with pytest.raises(ProgramMisuse, match="cache"):
        program.pin()
    with pytest.raises(AttributeError, match="cache"):
        _ = sgl.pin
