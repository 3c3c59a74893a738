"""A grammar and an answer as text of 80 columns.

state  one of      then, forced                        to
    1              {"shape":"                           2
    2  c                                                3
       t           riangle","colour":"                  5

step  how   tokens                         may come    for example
   -  jump  {"|shape|":"                   forced
   1  draw  star                           9   1.2%    c|s|t|square|triangle
"""

from __future__ import annotations

from collections.abc import Iterator

from mmserve.constrained.show.graph import MAX_COUNTED, Counts, Graph, Place
from mmserve.constrained.show.way import Forced, Step, Way, readable
from mmserve.core import Constraint
from mmserve.core.svg import cut, printable

__all__ = [
    "counts_line",
    "draw_text",
    "joined",
    "note_of",
    "share_of",
    "sums_line",
    "text_of",
    "title_of",
]

_COLUMNS = 80
_MAX_TEXT = 1_000
_MAX_STEPS = 40
_LEAST_SHARE = 0.1
_CHOSEN, _FORCED, _TARGET = 20, 43, 5
_LEAST_TOKENS, _MOST_TOKENS, _ALLOWED = 9, 24, 14


def draw_text(constraint: Constraint, graph: Graph | None, way: Way | None) -> str:
    """The automaton, if there is one, then the answer's steps, if there is one. Pure."""
    lines = [title_of(constraint, _COLUMNS), counts_line(graph)]
    if graph is not None:
        lines += ["", *_graph_lines(graph)]
    if way is not None:
        lines += ["", cut(f"answer  {printable(way.text)}", _COLUMNS)]
        lines += [sums_line(way), "", *_way_lines(way)]
    return "\n".join(line.rstrip() for line in lines)


def title_of(constraint: Constraint, num_letters: int) -> str:
    """The constraint in one line of at most so many letters. Pure."""
    return cut(f"{constraint.kind}  {text_of(constraint)}", num_letters)


def text_of(constraint: Constraint) -> str:
    """The first characters of a constraint in one line. Pure."""
    text = constraint.value[:_MAX_TEXT]
    if constraint.kind not in ("regex", "choices"):
        text = " ".join(text.split())
    return readable(text.encode(errors="backslashreplace"))


def counts_line(graph: Graph | None) -> str:
    """How large the automaton is, before and after compression. Pure."""
    if graph is None:
        return "parsed by llguidance: there is no automaton to draw"
    counts: Counts | None = graph.counts
    if counts is None:
        return f"more than {MAX_COUNTED:,} states over bytes"
    return (
        f"over bytes: {_many(counts.num_states, 'state')}, {_many(counts.num_edges, 'edge')}; "
        f"compressed: {_many(counts.num_kept_states, 'state')}, "
        f"{_many(counts.num_kept_edges, 'edge')}"
    )


def sums_line(way: Way) -> str:
    """How its tokens came about. Pure."""
    num_replaced = sum(len(jump.replaced) for jump in way.jumps)
    notes = [
        f"{_many(way.num_tokens, 'token')}: {way.num_forced:,} forced in "
        f"{_many(len(way.jumps), 'jump')}",
        f"{way.num_drawn:,} drawn",
    ]
    if num_replaced:
        notes.append(f"{num_replaced:,} replaced")
    if not way.is_whole:
        notes.append("cut before its end")
    return ", ".join(notes)


def joined(tokens: tuple[str, ...], num_letters: int) -> str:
    """Tokens between bars, as many as there is room for. Pure."""
    text = "|".join(tokens)
    if len(text) <= num_letters:
        return printable(text)
    shown: list[str] = []
    room = num_letters - 3
    for token in tokens:
        room -= len(token) + 1
        if room < 0:
            break
        shown.append(token)
    return f"{printable('|'.join(shown))}|.." if shown else cut(text, num_letters)


def share_of(step: Step, num_vocabulary: int) -> str:
    """How much of the vocabulary might have come. Pure."""
    share = 100 * step.num_allowed / max(num_vocabulary, 1)
    return f"{share:.1f}%" if share >= _LEAST_SHARE else f"<{_LEAST_SHARE}%"


def note_of(jump: Forced) -> str:
    """What else there is to say of a jump. Pure."""
    notes = []
    if jump.replaced:
        notes.append(f"for {'|'.join(jump.replaced)}")
    if jump.waiting:
        notes.append(f"waits: |{jump.waiting}|")
    if jump.is_end:
        notes.append("the end")
    return ", ".join(notes)


def _many(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


# --- the automaton -----------------------------------------------------------------------


def _graph_lines(graph: Graph) -> Iterator[str]:
    yield f"state  {'one of':<{_CHOSEN}}  {'then, forced':<{_FORCED}} {'to':>{_TARGET}}"
    for place in graph.places:
        yield from _place_lines(place)
    if not graph.is_whole:
        yield f"... only the {len(graph.places)} places nearest to the start are drawn"


def _place_lines(place: Place) -> Iterator[str]:
    head = f"{place.number:>5}"
    if place.may_end:
        word = "may end here" if place.routes else "the end"
        yield f"{head}  ({word})"
        head = ""
    for route in place.routes:
        target = str(route.target) if route.target else ".."
        yield (
            f"{head:>5}  {cut(route.chosen, _CHOSEN):<{_CHOSEN}}  "
            f"{cut(route.forced, _FORCED):<{_FORCED}} {target:>{_TARGET}}"
        )
        head = ""
    if place.num_hidden:
        yield f"       ... {place.num_hidden:,} more"
    if place.num_alike > 1:
        yield f"       {place.num_alike:,} such states in a row"


# --- the answer --------------------------------------------------------------------------


def _way_lines(way: Way) -> Iterator[str]:
    width = max((len(step.drawn or "(end)") for step in way.steps), default=0)
    width = min(max(width, _LEAST_TOKENS), _MOST_TOKENS)
    yield f"step  how   {'tokens':<{width}}  {'may come':>{_ALLOWED}}  for example"
    number = 0
    for step in way.steps[:_MAX_STEPS]:
        if step.forced is not None:
            yield _jump_line(step.forced)
        if step.drawn is not None:
            number += 1
            yield f"{number:>4}  draw  {_draw_line(step, way.num_vocabulary, width)}"
    if len(way.steps) > _MAX_STEPS:
        yield f"... {len(way.steps) - _MAX_STEPS:,} more steps"


def _jump_line(jump: Forced) -> str:
    note = cut(note_of(jump), 30)
    room = _COLUMNS - 12 - (len(note) + 3 if note else 0)
    tokens = joined(jump.tokens, room)
    return f"   -  jump  {tokens}" + (f"   {note}" if note else "")


def _draw_line(step: Step, num_vocabulary: int, width: int) -> str:
    allowed = f"{step.num_allowed:,} {share_of(step, num_vocabulary):>6}"
    drawn = joined((step.drawn,), width) if step.drawn else "(end)"
    some = ("(end)", *step.some) if step.may_end else step.some
    tail = joined(some, _COLUMNS - 12 - width - 2 - _ALLOWED - 2)
    return f"{drawn:<{width}}  {allowed:>{_ALLOWED}}  {tail}"
