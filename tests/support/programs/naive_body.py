"""A program that is data, carried out by the naive interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.programs.body import used_text
from support.programs.naive import ANYTHING, Either, LeftToTime, State, Variable, Wrong
from support.programs.tree import (
    Append,
    Copy,
    Ending,
    Fork,
    Hold,
    Missing,
    Raise,
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

__all__ = ["outcome", "play"]


def outcome(read: Callable[[], object]) -> object:
    """What `read` gives, or the error it raises. Raises LeftToTime."""
    try:
        return read()
    except Wrong as error:
        return error


def play(s: State, statements: tuple[Statement, ...], notes: list[object]) -> None:
    """Carry them out. Raises Wrong and LeftToTime. Changes: state, notes."""
    for statement in statements:
        _PLAYERS[type(statement)](s, statement, notes)


def _append(s: State, statement: Append, notes: list[object]) -> None:
    s.append(statement.atoms)


def _turn(s: State, statement: Turn, notes: list[object]) -> None:
    s.append((("begin", statement.role), *statement.atoms, ("end", statement.role)))


def _hold(s: State, statement: Hold, notes: list[object]) -> None:
    role = statement.role
    s.append([("begin", role)])
    try:
        play(s, statement.inner, notes)
    except Wrong:
        if statement.is_with:
            s.append([("end", role)])
        raise
    s.append([("end", role)])


def _scope(s: State, statement: Scope, notes: list[object]) -> None:
    s.open_scope(statement.name)
    try:
        play(s, statement.inner, notes)
    except Wrong:
        s.close_scope()
        raise
    s.close_scope()


def _set(s: State, statement: Set, notes: list[object]) -> None:
    value = statement.value
    variable = s.declare(statement.name, is_direct=True)
    variable.set(value, value if isinstance(value, str) else "")


def _read(s: State, statement: Read, notes: list[object]) -> None:
    name = statement.name
    match statement.how:
        case "has":
            notes.append(name in s.variables)
        case "value":
            notes.append(s.find(name).value)
        case "iter":
            notes.append(s.find(name).streamed)
        case "meta":
            notes.append(_meta(s.find(name)))


def _meta(variable: Variable) -> object:
    if variable.meta is None:
        raise Wrong("ProgramMisuse")
    return variable.meta


def _whole(s: State, statement: Whole, notes: list[object]) -> None:
    match statement.how:
        case "text" | "iter":
            notes.append(s.text())
        case "messages":
            s.sync()
            notes.append(s.content.messages())
        case "sync":
            s.sync()
        case "error":
            s.settle()
            notes.append(_error(s))


def _error(s: State) -> object:
    return Wrong(*s.failure) if s.failure else None


def _use(s: State, statement: Use, notes: list[object]) -> None:
    s.append([Text(f"<{used_text(s.find(statement.name).value)}>")])


def _try(s: State, statement: Try, notes: list[object]) -> None:
    try:
        play(s, statement.inner, notes)
    except Wrong as error:
        notes.append(error)


def _raise(s: State, statement: Raise, notes: list[object]) -> None:
    raise Wrong("ZeroDivisionError")


def _missing(s: State, statement: Missing, notes: list[object]) -> None:
    raise Wrong("ProgramMisuse" if s.is_joined else "MediaRefused")


def _stop(s: State, statement: Stop, notes: list[object]) -> None:
    s.cancel()


def _copy(s: State, statement: Copy, notes: list[object]) -> None:
    (child,) = _split(s, 1)
    play(child, statement.inner, notes)
    _join(s, [child], s.role, "gather_variable", "raise")


# -- forks -----------------------------------------------------------------------------------


def _split(s: State, size: int) -> list[State]:
    s.append(())
    children = [State() for _ in range(size)]
    for child in children:
        child.content = s.content.copy()
        child.role = s.role
        child.texts = list(s.texts)
        child.variables = dict(s.variables)
        child.failure = s.failure
        child.is_seen = s.is_seen
        child.is_shaken = s.is_shaken
        child.is_synced = False
    s.children += children
    s.is_synced = False
    return children


def _fork(s: State, fork: Fork, notes: list[object]) -> None:
    children = _split(s, fork.size)
    role = s.role
    for index, child in enumerate(children):
        number = () if fork.way == "all" else (Text(f"{index}"),)
        child.append((*number, *fork.spread))
    for child, inner in zip(children, fork.children, strict=False):
        play(child, inner, notes)
    play(s, fork.between, notes)
    _end(s, children, role, fork.ending, notes)


def _end(
    s: State, children: list[State], role: str | None, ending: Ending, notes: list[object]
) -> None:
    if ending.is_settled:
        for child in children:
            child.settle()
        notes.append([_error(child) for child in children])
    if ending.completed is not None:
        name = ending.completed
        notes.append([_seen(child, name) for child in children])
    if ending.is_cancelled:
        for child in children:
            child.cancel()
    if ending.join is not None:
        _join(s, children, role, *ending.join)
    if ending.is_looked_at:
        notes.append(_seen(children[0], ""))
        children[0].append([Text("more")])


def _seen(child: State, name: str) -> object:
    return outcome(lambda: child.find(name).value if name else child.text())


def _join(s: State, children: list[State], role: str | None, mode: str, on_error: str) -> None:
    if s.is_joined:
        raise Wrong("ProgramMisuse")
    _wait_for_parent(s)
    for child in children:
        if child.is_shaken:
            raise LeftToTime
    failures: set[str] = set().union(*(child.failure for child in children))
    if failures and on_error == "raise":
        for child in children:
            child.failure = child.failure and child.failure | {"Aborted"}
            child.shake()
        raise Wrong(*failures)
    for child in children:
        child.settle()
    if mode == "gather_variable":
        _gather(s, children)
    else:
        good = [child for child in children if not child.failure]
        if any(child.has_turned for child in good) or (good and s.role != role):
            raise Wrong("ProgramMisuse")
        s.append([piece for child in good for piece in child.added])
    for child in children:
        child.is_joined = True


def _wait_for_parent(s: State) -> None:
    if s.is_shaken or (s.failure and not s.is_seen):
        raise LeftToTime
    if s.failure:
        raise Wrong(*s.failure)


def _gather(s: State, children: list[State]) -> None:
    for name in dict.fromkeys(name for child in children for name in child.declared):
        entries = [
            child.variables[name] if name in child.declared else None for child in children
        ]
        joined = s.declare(name, is_direct=True)
        joined.set(
            [None if entry is None else entry.value for entry in entries],
            "",
            [None if entry is None else _meta_of_entry(entry) for entry in entries],
        )


def _meta_of_entry(entry: Variable) -> object:
    if isinstance(entry.value, Either):
        return ANYTHING
    return None if isinstance(entry.value, Wrong) else entry.meta


_PLAYERS: dict[type, Any] = {
    Append: _append,
    Turn: _turn,
    Hold: _hold,
    Scope: _scope,
    Set: _set,
    Read: _read,
    Whole: _whole,
    Use: _use,
    Try: _try,
    Raise: _raise,
    Missing: _missing,
    Stop: _stop,
    Copy: _copy,
    Fork: _fork,
}
