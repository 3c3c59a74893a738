"""What a program appends: small frozen nodes, joined by `+` into an `Expr`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from mmserve.core import Constraint, ImagePart, RawPart, TextPart, VideoPart
from mmserve.lang.choices import ChoicesMethod
from mmserve.lang.texts import whole_text

__all__ = [
    "REGEX_BOOL",
    "REGEX_FLOAT",
    "REGEX_INT",
    "REGEX_STR",
    "Expr",
    "Gen",
    "Hole",
    "Node",
    "Picture",
    "Prepared",
    "RoleBegin",
    "RoleEnd",
    "ScopeBegin",
    "ScopeEnd",
    "Select",
    "Snapshot",
    "as_expr",
]

REGEX_INT = r"[-+]?[0-9]+[ \n]*"
REGEX_FLOAT = r"[-+]?[0-9]*\.?[0-9]+[ \n]*"
REGEX_BOOL = r"(True|False)"
REGEX_STR = r"\"[\w\d\s]*\""


@dataclass(frozen=True, slots=True)
class Gen:
    """A call of the model.

    `changes` are checked values of `CallOptions` and `SamplingParams` fields that differ from
    the run's; `convert` turns the finished text into what `state.value` gives. `asks` names the
    parameters that a backend must be able to serve, `dtype` the value of that one. `reasoning`
    names the notation of thinking that is kept out of the answer.
    """

    name: str | None
    changes: Mapping[str, object] = field(default_factory=dict)
    constraint: Constraint | None = None
    extra_stops: tuple[str, ...] = ()
    convert: Callable[[str], object] | None = None
    asks: frozenset[str] = frozenset()
    dtype: str | None = None
    reasoning: str | None = None


@dataclass(frozen=True, slots=True)
class Select:
    """A choice among texts by their log-probabilities."""

    name: str | None
    choices: tuple[str, ...]
    method: ChoicesMethod
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture or clip as the program named it; `load` takes its content at the append."""

    load: Callable[[], ImagePart | VideoPart]
    kind: Literal["image", "video"]
    source: object


@dataclass(frozen=True, slots=True)
class Hole:
    """A value that is not known while a program is traced; never carried out."""

    name: str


@dataclass(frozen=True, slots=True)
class RoleBegin:
    """Opens a turn."""

    role: str


@dataclass(frozen=True, slots=True)
class RoleEnd:
    """Closes the turn of this role."""

    role: str


@dataclass(frozen=True, slots=True)
class ScopeBegin:
    """From here on text counts to a variable."""

    name: str


@dataclass(frozen=True, slots=True)
class ScopeEnd:
    """The variable's text ends here."""

    name: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A fork: here `release` hands the content so far to the children, or `refuse` an error.

    `is_shared` asks to compute the content once before anyone continues it.
    """

    release: Callable[[], None]
    refuse: Callable[[BaseException], None]
    is_shared: bool


Node = TextPart | RawPart | Picture | Hole | Gen | Select | RoleBegin | RoleEnd
Prepared = (
    TextPart
    | RawPart
    | ImagePart
    | VideoPart
    | Hole
    | Gen
    | Select
    | RoleBegin
    | RoleEnd
    | ScopeBegin
    | ScopeEnd
    | Snapshot
)


@dataclass(frozen=True, slots=True)
class Expr:
    """Nodes in order; `+` joins expressions and texts."""

    nodes: tuple[Node, ...] = ()

    def __add__(self, other: object) -> Expr:
        if not isinstance(other, (str, Expr)):
            return NotImplemented
        return Expr(self.nodes + as_expr(other).nodes)

    def __radd__(self, other: object) -> Expr:
        if not isinstance(other, str):
            return NotImplemented
        return Expr(as_expr(other).nodes + self.nodes)


def as_expr(value: object) -> Expr:
    """The expression of a text, an expression, or None. Pure.

    Raises TypeError for others, and BadRequest for half of a surrogate pair.
    """
    if isinstance(value, Expr):
        return value
    if isinstance(value, str):
        return Expr((TextPart(whole_text(value, "text")),) if value else ())
    if value is None:
        return Expr()
    message = f"a program appends str or expressions, not {type(value).__name__}"
    raise TypeError(message)
