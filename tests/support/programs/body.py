"""A program that is data, carried out by the language itself."""

from __future__ import annotations

from typing import Any

import mmserve.lang as sgl
from support.programs.tree import (
    Append,
    Atom,
    Clip,
    Copy,
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

__all__ = ["endings", "play", "used_text"]


def play(s: Any, statements: tuple[Statement, ...], notes: list[object]) -> None:
    """Carry them out on a state. Raises what the language raises. Changes: state, notes."""
    for statement in statements:
        _PLAYERS[type(statement)](s, statement, notes)


def used_text(value: object) -> str:
    """What `Use` appends of a value: the text, or how many there are. Pure."""
    if isinstance(value, list):
        return f"#{len(value)}"
    return str(value)


def _atom(atom: Atom) -> object:
    made: object
    match atom:
        case Text(text):
            made = text
        case Raw(text):
            made = sgl.raw(text)
        case Photo(content):
            made = sgl.image(content)
        case Clip(frames, num_frames):
            made = sgl.video(list(frames), num_frames)
        case Gen(name, max_tokens, n, stop, stop_regex):
            stops = list(stop) or None
            made = sgl.gen(name, max_tokens, n=n, stop=stops, stop_regex=stop_regex)
        case Pick(name, options, rule):
            made = sgl.select(name, list(options), choices_method=getattr(sgl, rule))
    return made


def _expr(atoms: tuple[Atom, ...]) -> Any:
    total: Any = sgl.raw("")
    for atom in atoms:
        total = total + _atom(atom)
    return total


def _append(s: Any, statement: Append, notes: list[object]) -> None:
    s += _expr(statement.atoms)


def _turn(s: Any, statement: Turn, notes: list[object]) -> None:
    expr = _expr(statement.atoms)
    if statement.is_method:
        getattr(s, statement.role)(expr)
    else:
        s += getattr(sgl, statement.role)(expr)


def _hold(s: Any, statement: Hold, notes: list[object]) -> None:
    if statement.is_with:
        with getattr(s, statement.role)():
            play(s, statement.inner, notes)
    else:
        s += getattr(sgl, f"{statement.role}_begin")()
        play(s, statement.inner, notes)
        s += getattr(sgl, f"{statement.role}_end")()


def _scope(s: Any, statement: Scope, notes: list[object]) -> None:
    with s.var_scope(statement.name):
        play(s, statement.inner, notes)


def _set(s: Any, statement: Set, notes: list[object]) -> None:
    s[statement.name] = statement.value


def _read(s: Any, statement: Read, notes: list[object]) -> None:
    name = statement.name
    match statement.how:
        case "value":
            notes.append(s[name])
        case "meta":
            notes.append(endings(s.get_meta_info(name)))
        case "has":
            notes.append(name in s)
        case "iter":
            notes.append("".join(s.text_iter(name)))


def endings(meta: Any) -> object:
    """Why the calls of a meta info ended: of one, or of a list of them. Pure."""
    if isinstance(meta, list):
        return [endings(item) for item in meta]
    return None if meta is None else meta["finish_reason"]


def _whole(s: Any, statement: Whole, notes: list[object]) -> None:
    match statement.how:
        case "text":
            notes.append(s.text())
        case "messages":
            notes.append(s.messages())
        case "sync":
            s.sync()
        case "iter":
            notes.append("".join(s.text_iter()))
        case "error":
            notes.append(s.error())


def _use(s: Any, statement: Use, notes: list[object]) -> None:
    s += f"<{used_text(s[statement.name])}>"


def _try(s: Any, statement: Try, notes: list[object]) -> None:
    try:
        play(s, statement.inner, notes)
    except Exception as error:  # noqa: BLE001  whatever it is, it is noted and compared
        notes.append(error)


def _raise(s: Any, statement: Raise, notes: list[object]) -> None:
    message = "the body's own"
    raise ZeroDivisionError(message)


def _missing(s: Any, statement: Missing, notes: list[object]) -> None:
    s += sgl.image("/no/such/picture.png")


def _stop(s: Any, statement: Stop, notes: list[object]) -> None:
    s.cancel()


def _copy(s: Any, statement: Copy, notes: list[object]) -> None:
    with s.copy() as child:
        play(child, statement.inner, notes)


def _fork(s: Any, fork: Fork, notes: list[object]) -> None:
    group = s.fork(fork.size)
    match fork.way:
        case "all":
            group += _expr(fork.spread)
        case "each":
            group += [f"{index}" + _expr(fork.spread) for index in range(fork.size)]
        case "call":
            group += lambda index: f"{index}" + _expr(fork.spread)
    for index, inner in enumerate(fork.children):
        play(group[index], inner, notes)
    play(s, fork.between, notes)
    _end(group, fork, notes)


def _end(group: Any, fork: Fork, notes: list[object]) -> None:
    ending = fork.ending
    if ending.is_settled:
        notes.append([child.error() for child in group])
    if ending.completed is not None:
        name = ending.completed
        found = {child.index: _seen(child, name) for child in group.as_completed(name or None)}
        notes.append([found[index] for index in range(fork.size)])
    if ending.is_cancelled:
        group.cancel()
    if ending.join is not None:
        mode, on_error = ending.join
        group.join(mode, on_error=on_error)
    if ending.is_looked_at:
        child = group[0]
        notes.append(_seen(child, ""))
        child += "more"


def _seen(child: Any, name: str) -> object:
    try:
        return child[name] if name else child.text()
    except Exception as error:  # noqa: BLE001  whatever it is, it is noted and compared
        return error


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
