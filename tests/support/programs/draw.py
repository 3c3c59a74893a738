"""Random programs: mostly sensible, with every kind of mistake now and then."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from support.programs.tree import (
    Append,
    Atom,
    Clip,
    Copy,
    Ending,
    Fork,
    Gen,
    Hold,
    Missing,
    Photo,
    Pick,
    Raise,
    Raw,
    Read,
    Scope,
    Set,
    Statement,
    Stop,
    Text,
    Try,
    Turn,
    Use,
    Whole,
)

__all__ = ["programs"]

Block = tuple[Statement, ...]
Draw = Any

_ROLES = ("user", "assistant", "system")
_RULES = (
    "token_length_normalized",
    "greedy_token_selection",
    "unconditional_likelihood_normalized",
)
_TEXTS = ("a", "Q? ", "one two ", "", "é", "<image>")
_OPTIONS = ("yes", "no", "maybe", "maybe not", "ñ")
_STOPS = ("0", "a", "f", "3c", "12")

_texts = st.builds(Text, st.sampled_from(_TEXTS))
_media = st.one_of(
    st.builds(Photo, st.sampled_from([b"P", b"Q"])),
    st.builds(
        Clip,
        st.lists(st.sampled_from([b"1", b"2"]), min_size=1, max_size=2).map(tuple),
        st.sampled_from([None, 2]),
    ),
)
_gens = st.builds(
    Gen,
    st.sampled_from(["x", "x", "y", "z", None]),
    st.sampled_from([None, 4, 4, 1, 0]),
    st.sampled_from([None, None, None, 1, 2, 3]),
    st.lists(st.sampled_from(_STOPS), max_size=2).map(tuple),
    st.sampled_from([None, None, None, "[0-9][a-f]", "b."]),
)
_picks = st.builds(
    Pick,
    st.sampled_from(["x", "y", "z", None]),
    st.lists(st.sampled_from(_OPTIONS), min_size=1, max_size=3).map(tuple),
    st.sampled_from(_RULES),
)
_atoms: st.SearchStrategy[Atom] = st.one_of(
    _texts, _texts, _gens, _gens, _picks, _media, st.builds(Raw, st.sampled_from(_TEXTS))
)
_sums = st.lists(_atoms, min_size=1, max_size=3).map(tuple)
_joins = st.sampled_from(
    [("gather_variable", "raise")] * 3
    + [("gather_variable", "keep"), ("concate_and_append", "raise")] * 2
    + [("concate_and_append", "keep")]
)
_endings = st.builds(
    Ending,
    is_settled=st.sampled_from([False, False, True]),
    completed=st.sampled_from([None, None, "", "x", "v0"]),
    is_cancelled=st.sampled_from([False] * 9 + [True]),
    join=st.one_of(_joins, _joins, _joins, st.none()),
    is_looked_at=st.sampled_from([False] * 9 + [True]),
)
_PLAIN_WORDS = ("set", "read", "use", "whole")
_PLAIN = (
    ("append",) * 24
    + ("boom",) * 2
    + ("set",) * 2
    + ("read",) * 4
    + ("use",) * 5
    + ("whole",) * 5
)
_PLAIN_KINDS = st.sampled_from((*_PLAIN, "mistake"))
_NESTED = ("fork",) * 6 + ("try fork",) * 3 + ("hold", "scope", "try") * 2 + ("copy",)
_KINDS = st.sampled_from((*_PLAIN, *_NESTED * 2, "mistake"))
_mistakes = st.sampled_from([Raise(), Missing(), Stop(), Read("unknown", "value")])


class _Writer:
    """Draws one program, and knows which names are set so far. Mutable."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._names: list[str] = []
        self._role: str | None = None

    def block(self, depth: int, least: int = 1) -> Block:
        """A few statements, nested at most `depth` deep."""
        count = self._draw(st.sampled_from(range(least, 5)))
        return tuple(self._statement(depth) for _ in range(count))

    def inside(self, depth: int, role: str | None) -> Block:
        """A block in a turn of `role`, or a block of a child; names made inside stay there."""
        names, outer = list(self._names), self._role
        self._role = role
        block = self.block(depth)
        self._names, self._role = names, outer
        return block

    def _statement(self, depth: int) -> Statement:
        kind = self._draw(_KINDS if depth else _PLAIN_KINDS)
        if kind == "append" or (kind == "hold" and self._role is not None):
            return self._append()
        if kind == "boom":
            return Append((Text("BOOM"), *self._draw(st.sampled_from([(), (Gen("x"),)]))))
        if kind == "mistake":
            return self._draw(_mistakes)
        if kind in _PLAIN_WORDS:
            return self._plain(kind)
        return self._nested(kind, depth)

    def _append(self) -> Statement:
        atoms = self._draw(_sums)
        self._know(*(atom.name for atom in atoms if isinstance(atom, (Gen, Pick))))
        has_turn = self._role is None or self._draw(st.sampled_from([False] * 30 + [True]))
        if has_turn and self._draw(st.booleans()):
            role, is_method = self._draw(st.sampled_from(_ROLES)), self._draw(st.booleans())
            return Turn(role, atoms, is_method)
        return Append(atoms)

    def _know(self, *names: str | None) -> None:
        self._names += [name for name in names if name is not None]

    def _name(self) -> str:
        if not self._names:
            return "x"
        return self._draw(st.sampled_from(sorted(set(self._names))))

    def _plain(self, kind: str) -> Statement:
        if kind == "set":
            name = self._draw(st.sampled_from(["x", "y"]))
            self._know(name)
            return Set(name, self._draw(st.sampled_from([7, "set", None])))
        if kind == "read" and self._names:
            how = st.sampled_from(["value", "value", "meta", "has", "iter"])
            return Read(self._name(), self._draw(how))
        if kind == "use" and self._names:
            return Use(self._name())
        how = st.sampled_from(["text", "messages", "sync", "iter", "error", "error"])
        return Whole(self._draw(how))

    def _nested(self, kind: str, depth: int) -> Statement:
        if kind == "hold":
            role = self._draw(st.sampled_from(_ROLES))
            return Hold(role, self.inside(depth - 1, role), self._draw(st.booleans()))
        if kind == "scope":
            name = f"v{depth % 2}"
            self._know(name)
            return Scope(name, self.block(depth - 1))
        if kind == "try":
            return Try(self.block(depth - 1))
        if kind == "copy":
            return Copy(self.inside(depth - 1, self._role))
        fork = self._fork(depth)
        return fork if kind == "fork" else Try((fork,))

    def _fork(self, depth: int) -> Fork:
        size = self._draw(st.integers(1, 3))
        spread = tuple(self._draw(st.lists(_atoms, max_size=2)))
        ending = self._draw(_endings)
        is_flat = ending.join is not None and ending.join[0] == "concate_and_append"
        role, inner_depth = (self._role or "none", 0) if is_flat else (self._role, depth - 1)
        children = tuple(self.inside(inner_depth, role) for _ in range(size))
        between = (
            self.block(0, 0) if self._draw(st.sampled_from([False, False, False, True])) else ()
        )
        if ending.join is not None and ending.join[0] == "gather_variable":
            made = [atom.name for atom in spread if isinstance(atom, (Gen, Pick))]
            made += [
                atom.name
                for inner in children
                for statement in inner
                if isinstance(statement, (Append, Turn))
                for atom in statement.atoms
                if isinstance(atom, (Gen, Pick))
            ]
            self._know(*made)
        way = self._draw(st.sampled_from(["all", "each", "call"]))
        return Fork(size, spread, way, children, between, ending)


@st.composite
def programs(draw: Draw) -> Block:
    """A program of up to four statements in a block, nested up to three deep."""
    writer = _Writer(draw)
    first = Append((Text(draw(st.sampled_from(["start ", ""]))),))
    return (first, *writer.block(3, least=3))
