"""A program of the language as data, and as text that a person can read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = [
    "Append",
    "Atom",
    "Clip",
    "Copy",
    "Ending",
    "Fork",
    "Gen",
    "Hold",
    "Missing",
    "Photo",
    "Pick",
    "Raise",
    "Raw",
    "Read",
    "Scope",
    "Set",
    "Statement",
    "Stop",
    "Text",
    "Try",
    "Turn",
    "Use",
    "Whole",
    "source",
]


@dataclass(frozen=True, slots=True)
class Text:
    """A text."""

    text: str


@dataclass(frozen=True, slots=True)
class Raw:
    """A text of the template's own."""

    text: str


@dataclass(frozen=True, slots=True)
class Photo:
    """A picture by its bytes."""

    content: bytes


@dataclass(frozen=True, slots=True)
class Clip:
    """A clip by its frames' bytes."""

    frames: tuple[bytes, ...]
    num_frames: int | None


@dataclass(frozen=True, slots=True)
class Gen:
    """An answer, or `n` of them."""

    name: str | None
    max_tokens: int | None = None
    n: int | None = None
    stop: tuple[str, ...] = ()
    stop_regex: str | None = None


@dataclass(frozen=True, slots=True)
class Pick:
    """A select by the rule of this name."""

    name: str | None
    options: tuple[str, ...]
    rule: str


Atom = Text | Raw | Photo | Clip | Gen | Pick


@dataclass(frozen=True, slots=True)
class Append:
    """`s += a + b + ...`."""

    atoms: tuple[Atom, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """`s += user(...)`, or `s.user(...)`."""

    role: str
    atoms: tuple[Atom, ...]
    is_method: bool = False


@dataclass(frozen=True, slots=True)
class Hold:
    """`with s.user(): ...`, or `user_begin()`, the statements, `user_end()`."""

    role: str
    inner: tuple[Statement, ...]
    is_with: bool


@dataclass(frozen=True, slots=True)
class Scope:
    """`with s.var_scope(name): ...`."""

    name: str
    inner: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Set:
    """`s[name] = value`."""

    name: str
    value: object


@dataclass(frozen=True, slots=True)
class Read:
    """A read of a name, noted: "value", "meta", "has" or "iter"."""

    name: str
    how: str


@dataclass(frozen=True, slots=True)
class Whole:
    """A read of the whole state, noted: "text", "messages", "sync", "iter" or "error"."""

    how: str


@dataclass(frozen=True, slots=True)
class Use:
    """A name's value appended as text."""

    name: str


@dataclass(frozen=True, slots=True)
class Try:
    """Statements whose exception is caught and noted."""

    inner: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Raise:
    """An exception of the body."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A picture that does not exist."""


@dataclass(frozen=True, slots=True)
class Stop:
    """`s.cancel()`."""


@dataclass(frozen=True, slots=True)
class Copy:
    """`with s.copy() as s: ...`."""

    inner: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Ending:
    """What becomes of a group, in this order.

    Wait for the children if `is_settled`; note them as they complete, by the variable
    `completed` ("" for the children as a whole); cancel them; join them by (mode, on_error);
    look at the first child and append to it, if `is_looked_at`.
    """

    is_settled: bool = False
    completed: str | None = None
    is_cancelled: bool = False
    join: tuple[str, str] | None = None
    is_looked_at: bool = False


@dataclass(frozen=True, slots=True)
class Fork:
    """`spread` goes to all by `way`, then `children[i]` runs, then `between` on `s`."""

    size: int
    spread: tuple[Atom, ...]
    way: str
    children: tuple[tuple[Statement, ...], ...]
    between: tuple[Statement, ...]
    ending: Ending


Statement = (
    Append
    | Turn
    | Hold
    | Scope
    | Set
    | Read
    | Whole
    | Use
    | Try
    | Raise
    | Missing
    | Stop
    | Copy
    | Fork
)


def source(program: tuple[Statement, ...]) -> str:
    """The program as lines, nested statements indented. Pure."""
    return "\n".join(_lines(program, ""))


def _lines(statements: tuple[Statement, ...], indent: str) -> Iterator[str]:
    for statement in statements:
        match statement:
            case Append(atoms):
                yield f"{indent}s += {_sum(atoms)}"
            case Turn(role, atoms):
                yield f"{indent}s += {role}({_sum(atoms)})"
            case Hold(role, inner, is_with):
                yield f"{indent}{'with' if is_with else 'begin and end'} s.{role}():"
                yield from _lines(inner, indent + "    ")
            case Fork():
                yield from _fork_lines(statement, indent)
            case Scope() | Try() | Copy():
                name = f" {statement.name}" if isinstance(statement, Scope) else ""
                yield f"{indent}{type(statement).__name__.lower()}{name}:"
                yield from _lines(statement.inner, indent + "    ")
            case _:
                yield f"{indent}{statement}"


def _fork_lines(fork: Fork, indent: str) -> Iterator[str]:
    yield f"{indent}g = s.fork({fork.size})"
    yield f"{indent}g += {_sum(fork.spread)}  # {fork.way}"
    for index, inner in enumerate(fork.children):
        yield f"{indent}with s as g[{index}]:"
        yield from _lines(inner, indent + "    ")
    yield from _lines(fork.between, indent)
    yield f"{indent}g: {fork.ending}"


def _sum(atoms: tuple[Atom, ...]) -> str:
    return " + ".join(map(str, atoms)) or '""'
