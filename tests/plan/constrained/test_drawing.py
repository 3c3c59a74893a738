"""Automata, answers and kept grammars can be looked at, in a terminal and in a browser."""

import json
import re
from collections.abc import Iterator
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.constrained.sampling import tokenizer

from mmserve.constrained import CompileCounts, GrammarCompiler
from mmserve.constrained.automaton import byte_table, compile_regex
from mmserve.constrained.show import (
    check_followed,
    draw_kept,
    draw_picture,
    draw_text,
    drawn_at_random,
    drawn_from,
    drawn_in_turn,
    graph_of,
    walk,
)
from mmserve.constrained.show.graph import Graph
from mmserve.constrained.show.way import Way
from mmserve.constrained.vocabulary import Vocabulary
from mmserve.core import BadRequest, Constraint

SVG = "{http://www.w3.org/2000/svg}"
RECORD = r'\{"shape":"(circle|square|star)","colour":"(red|green)","count":[1-9][0-9]?\}'
SCHEMA = (
    '{"type": "object", "properties": {"size": {"enum": ["small", "large"]}},'
    ' "required": ["size"], "additionalProperties": false}'
)
TOKENS = tokenizer("tabletop")
FACTS = {
    "eos_token_ids": (TOKENS.eos_token_id,),
    "vocab_size": 768,
    "special_ids": TOKENS.control_ids,
    "encode": TOKENS.encode_inside,
}
VOCABULARY = Vocabulary(TOKENS.pieces, **FACTS)
COMPILER = GrammarCompiler(TOKENS.pieces, **FACTS)

Box = tuple[float, float, float, float]


def graph(pattern: str, most: int = 40) -> Graph:
    """What is drawn of a pattern."""
    return graph_of(compile_regex(pattern, VOCABULARY), most)


def way(kind: str, value: str, draw, max_steps: int = 64) -> Way:
    """An answer, each token of which `draw` says."""
    matcher = COMPILER.compile(Constraint(kind, value))()
    automaton = COMPILER.kept()[0].automaton
    return walk(matcher, VOCABULARY, draw, max_steps=max_steps, automaton=automaton)


def ids(*texts: str) -> list[int]:
    """The token of each text."""
    return [VOCABULARY.ids[text.encode()][0] for text in texts]


# Text


def test_the_text_of_a_record_and_its_answer():
    """A line a way, a line a jump, a line a token drawn; nothing else."""
    draw = drawn_from('{"shape":"star","colour":"red","count":7}', VOCABULARY)
    text = draw_text(Constraint("regex", RECORD), graph(RECORD), way("regex", RECORD, draw))
    assert text.splitlines() == [
        r'regex  \{"shape":"(circle|square|star)","colour":"(red|green)","count":[1-9][0..',
        "over bytes: 55 states, 58 edges; compressed: 7 states, 10 edges",
        "",
        "state  one of                then, forced                                   to",
        '    1                        {"shape":"                                      2',
        '    2  c                     ircle","colour":"                               3',
        "       s                                                                     4",
        '    3  g                     reen","count":                                  5',
        '       r                     ed","count":                                    5',
        '    4  q                     uare","colour":"                                3',
        '       t                     ar","colour":"                                  3',
        "    5  [1-9]                                                                 6",
        "    6  [0-9]                 }                                               7",
        "       }                                                                     7",
        "    7  (the end)",
        "",
        'answer  {"shape":"star","colour":"red","count":7}',
        "13 tokens: 9 forced in 3 jumps, 4 drawn",
        "",
        "step  how   tokens           may come  for example",
        '   -  jump  {"|shape|":"',
        "   1  draw  star             6   0.8%  square|circle|star|st|c|s",
        '   -  jump  ","|colour|":"',
        "   2  draw  red              6   0.8%  re|gre|green|red|g|r",
        '   -  jump  ","|count|":',
        "   3  draw  7                9   1.2%  1|2|3|4|5|6|7|8|9",
        "   4  draw  }               11   1.4%  0|1|2|3|4|5|6|7|8|9|}",
    ]


def test_what_gave_way_and_what_waits_is_told():
    """A jump names the tokens it replaces, the forced text it leaves, and the end."""
    steps = way("regex", RECORD, drawn_in_turn(ids("st", "gre", "1", "2"))).steps
    assert [step.forced and step.forced.replaced for step in steps] == [
        *((), ("st",), ("gre",)),
        *(None, ()),
    ]
    assert steps[-1].forced is not None
    assert steps[-1].forced.is_end
    waiting = way("regex", r'\{"name": "[^"]{1,5}"\}', drawn_in_turn(())).steps[0].forced
    assert waiting is not None
    assert (waiting.tokens, waiting.waiting) == (('{"', "name", '":', " "), '"')


def test_a_schema_has_steps_and_no_automaton():
    """The drawing says who parses it."""
    answer = way("json_schema", SCHEMA, drawn_from('{"size":"large"}', VOCABULARY))
    text = draw_text(Constraint("json_schema", SCHEMA), None, answer)
    assert "there is no automaton to draw" in text
    assert "state  one of" not in text
    assert 'answer  {"size":"large"}' in text


# The graph


@pytest.mark.parametrize(
    "pattern", [RECORD, "abc", "[a-z]+@[a-z]+[.](com|org)", "(yes|no)?", "a(b|c)*d"]
)
def test_drawn_states_and_ways_are_those_of_the_compressed_automaton(pattern):
    """Their numbers are those of the smallest automaton over bytes without its chains."""
    drawn = graph(pattern)
    table = byte_table(compile_regex(pattern, VOCABULARY))
    assert drawn.is_whole
    assert drawn.counts is not None
    counted = drawn.counts.num_kept_states, drawn.counts.num_kept_edges
    assert table is not None
    assert counted == table.num_kept
    assert counted == (len(drawn.places), sum(len(place.routes) for place in drawn.places))


def ways_through(drawn: Graph, number: int, text: str) -> Iterator[str]:
    """All texts from a place on, if chosen characters are literal."""
    place = drawn.places[number - 1]
    if place.may_end:
        yield text
    for route in place.routes:
        yield from ways_through(drawn, route.target, text + route.chosen + route.forced)


def test_the_drawing_has_exactly_the_texts_of_the_pattern():
    """Each text is one way from the start to an end, and each way is a text."""
    drawn = graph(r'\{"shape":"(circle|square|star)","of":"(red|reddish|green)"\}')
    assert set(ways_through(drawn, 1, "")) == {
        f'{{"shape":"{shape}","of":"{colour}"}}'
        for shape in ("circle", "square", "star")
        for colour in ("red", "reddish", "green")
    }


def test_choices_are_drawn_as_their_trie():
    """An option that begins another ends at a place that goes on."""
    COMPILER.compile(Constraint("choices", '["maybe", "may", "no"]'))
    automaton = COMPILER.kept()[0].automaton
    assert automaton is not None
    places = graph_of(automaton, 40).places
    ways = [
        (p.number, p.may_end, [(r.chosen, r.forced, r.target) for r in p.routes])
        for p in places
    ]
    assert ways == [
        (1, False, [("m", "ay", 2), ("n", "o", 3)]),
        (2, True, [("b", "e", 3)]),
        (3, True, []),
    ]


def test_turns_of_a_counted_repeat_are_one_place():
    """Fifty states that do the same one after the other are drawn once, and counted."""
    drawn = graph(r'"[a-z]{1,50}"!')
    assert [place.num_alike for place in drawn.places] == [1, 1, 48, 1, 1]
    assert [r.target for r in drawn.places[2].routes] == [4, 5]
    assert "48 such states in a row" in draw_text(Constraint("regex", ""), drawn, None)


def test_large_automata_are_cut():
    """The places nearest to the start are drawn, and the drawings say so."""
    drawn = graph("(a|b[ab]{3}|c.{2}d){1,40}x|" + "|".join(f"{n}{n}y" for n in range(100)), 9)
    assert len(drawn.places) == 9
    assert not drawn.is_whole
    for draw in (draw_text, draw_picture):
        assert "9 places nearest to the start" in draw(Constraint("regex", ""), drawn, None)


def test_too_many_states_are_not_counted():
    """What would take long to count is said to be more than that."""
    drawn = graph(r'"[\w ]{1,200}"')
    assert drawn.counts is None
    assert "more than 4,000 states" in draw_text(Constraint("regex", ""), drawn, None)


# The answer's way


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(["regex", "json_schema", "choices"]))
def test_tokens_of_the_steps_are_the_answer(seed, kind):
    """With what gave way taken off, they spell the text, and the sums add up."""
    value = {"regex": RECORD, "json_schema": SCHEMA, "choices": '["stars", "star", "st"]'}[kind]
    answer = way(kind, value, drawn_at_random(seed))
    tokens: list[str] = []
    for step in answer.steps:
        if step.forced is not None:
            gone = len(step.forced.replaced)
            assert tuple(tokens[len(tokens) - gone :]) == step.forced.replaced
            tokens[len(tokens) - gone :] = step.forced.tokens
        if step.drawn:
            assert step.num_allowed > 0
            tokens.append(step.drawn)
    assert answer.is_whole
    assert "".join(tokens) == answer.text
    assert len(tokens) == answer.num_tokens
    num_ends = sum(step.drawn == "" for step in answer.steps)
    assert answer.num_tokens == answer.num_forced + answer.num_drawn - num_ends


def test_a_beginning_of_an_answer_is_cut_there():
    """What is forced behind it is drawn still, and nothing after that."""
    answer = way("regex", RECORD, drawn_from('{"shape":"st', VOCABULARY))
    assert (answer.text, answer.is_whole) == ('{"shape":"star","colour":"', False)
    assert "cut before its end" in draw_text(Constraint("regex", RECORD), None, answer)
    assert len(way("regex", "a{9}", drawn_in_turn(ids("a", "a")), 1).steps) == 1


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("cat", 0),
        ('{"shape":"oval', 10),
        ('{"shape":"star"}', 15),
        ('{"shape":"star","colour":"red","count":12} ', 42),
    ],
)
def test_an_answer_that_does_not_fit_is_refused(text, position):
    """With the place of the first character that does not."""
    with pytest.raises(BadRequest) as caught:
        check_followed(text, way("regex", RECORD, drawn_from(text, VOCABULARY)))
    assert caught.value.fields["position"] == position


def test_long_answers_are_cut_in_both_drawings():
    """The first steps are drawn, the others counted."""
    answer = way("regex", "[ab]*", drawn_in_turn(ids("a", "b") * 30))
    assert "... 20 more steps" in draw_text(Constraint("regex", ""), None, answer)
    assert "... 12 more steps" in draw_picture(Constraint("regex", ""), None, answer)


# The picture


def boxes_of(root: ElementTree.Element) -> list[Box]:
    """Left, top, right and bottom of places, ways and tokens."""
    found = []
    for box in root.iter(f"{SVG}rect"):
        x, y, width, height = (
            float(box.get(side, "0")) for side in ("x", "y", "width", "height")
        )
        if height == 22:
            found.append((x, y, x + width, y + height))
    return found


def meet(one: Box, other: Box) -> bool:
    """Whether two areas have more than an edge in common."""
    slack = 0.2  # numbers in the file are rounded
    return (
        one[0] < other[2] - slack
        and other[0] < one[2] - slack
        and one[1] < other[3] - slack
        and other[1] < one[3] - slack
    )


PATTERNS = [
    RECORD,
    r'\{"name": "[^"]{1,50}", "age": [0-9]{1,3}, "tags": \[("[a-z]{1,9}"(,"[a-z]{1,9}")*)?\]\}',
    "(a|b){3,8}c|x(yz)?|(foo|bar|bazaar|blue|red|green){2} done",
    "[a-z]+@[a-z]+[.](com|org)",
    "(a|b[ab]{3}|c.{2}d){1,40}x",
    "(ab|cd|ef(gh|ij)*)*",
    "é|è|日本|日曜|x",
    "a" * 300,
    "(|a)",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_boxes_and_lines_keep_apart(pattern):
    """No box lies on another or outside the picture, and no line leads through one."""
    answer = way("regex", pattern, drawn_at_random(3))
    root = ElementTree.fromstring(
        draw_picture(Constraint("regex", pattern), graph(pattern), answer)
    )
    boxes = boxes_of(root)
    assert boxes
    assert max(box[2] for box in boxes) <= float(root.get("width", "0"))
    assert max(box[3] for box in boxes) <= float(root.get("height", "0"))
    assert not any(meet(one, other) for one, other in combinations(boxes, 2))
    lines = [
        [tuple(map(float, point.split(","))) for point in line.get("points", "").split()]
        for line in root.iter(f"{SVG}polyline")
    ]
    for (x, y), (x2, y2) in (pair for points in lines for pair in pairwise(points)):
        for part in range(20):  # a slanted line as small pieces
            start, end = x + (x2 - x) * part / 20, x + (x2 - x) * (part + 1) / 20
            low, high = sorted((y + (y2 - y) * part / 20, y + (y2 - y) * (part + 1) / 20))
            assert not any(meet((start, low - 0.3, end, high + 0.3), box) for box in boxes)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_way_is_in_the_picture(pattern):
    """As a line to a place, or with the number of the place it leads to."""
    drawn = graph(pattern)
    root = ElementTree.fromstring(draw_picture(Constraint("regex", pattern), drawn, None))
    titles = [one.text or "" for one in root.iter(f"{SVG}title")]
    for place in drawn.places:
        assert any(re.match(rf"state {place.number}(,|$)", title) for title in titles)
        for route in place.routes:
            if route.chosen:
                target = f"to state {route.target}" if route.target else "to a state not drawn"
                assert f"chosen: {route.chosen}, {target}" in titles


texts = st.text(max_size=30)


@settings(deadline=None, max_examples=40)
@given(st.lists(texts, min_size=1, max_size=40), st.integers(0, 9))
def test_any_choices_can_be_drawn(options, seed):
    """Whatever they spell: valid XML, and at most 80 columns that a terminal can show."""
    options = [one.encode(errors="replace").decode() for one in options]
    value = json.dumps(options)
    answer = way("choices", value, drawn_at_random(seed))
    automaton = COMPILER.kept()[0].automaton
    assert automaton is not None
    drawn = graph_of(automaton, 24)
    text = draw_text(Constraint("choices", value), drawn, answer)
    assert all(line.isprintable() for line in text.split("\n"))
    assert max(map(len, text.split("\n"))) <= 80
    ElementTree.fromstring(draw_picture(Constraint("choices", value), drawn, answer))


# What is kept


def counts(**refused: int) -> CompileCounts:
    """What a pool of `COMPILER` might have counted."""
    return CompileCounts(3, 12, {**refused}, 41.6, 2, COMPILER.num_entries, COMPILER.used_bytes)


def test_kept_grammars_are_listed():
    """Used last first, with their uses, bytes, states and masks."""
    made = GrammarCompiler(TOKENS.pieces, **FACTS)
    for kind, value in (("regex", "[ab]c"), ("json_schema", SCHEMA), ("regex", "[ab]c")):
        made.compile(Constraint(kind, value))()
    first, second = made.kept()
    assert (first.constraint.value, first.num_uses, first.num_states) == ("[ab]c", 2, 3)
    assert first.num_masks == 1
    assert (second.num_uses, second.num_states, second.num_masks) == (1, None, None)
    assert sum(one.num_bytes for one in made.kept()) == made.used_bytes
    lines = draw_kept(made.kept(), counts(invalid=2, too_large=1, busy=0)).splitlines()
    assert lines[1] == "3 compiled, 12 found compiled or under way, 42 ms spent"
    assert lines[2] == "refused: 2 invalid, 1 too large"
    assert lines[4].split() == ["kind", "uses", "bytes", "states", "masks", "text"]
    assert lines[5].split() == ["regex", "2", f"{first.num_bytes:,}", "3", "1", "[ab]c"]
    assert lines[6].startswith("json_schema      1 ")


def test_many_kept_grammars_are_counted():
    """At most forty are shown, in 80 columns and as valid XML; before the first, none."""
    made = GrammarCompiler(TOKENS.pieces, **FACTS)
    assert len(draw_kept((), counts()).splitlines()) == 2
    for number in range(45):
        made.compile(Constraint("choices", f'["{number}", "\\u202e<&>\\n{"long " * 30}"]'))
    text = draw_kept(made.kept(), counts())
    assert text.endswith("... 5 more")
    assert max(map(len, text.splitlines())) <= 80
    assert all(line.isprintable() for line in text.split("\n"))
    root = ElementTree.fromstring(draw_kept(made.kept(), counts(), "svg"))
    right = max(float(b.get("x", 0)) + float(b.get("width")) for b in root.iter(SVG + "rect"))
    assert right <= 1200
