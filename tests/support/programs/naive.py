"""The naive interpreter: one statement after the other, one thread, nothing to wait for.

It knows what a program must give. Where the language leaves an outcome to time (a value that
was there, or not yet, when its state was cancelled) it gives what may come (`Either`), and
raises `LeftToTime` where the rest of the program would depend on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from support.programs.content import Content, answers, chosen
from support.programs.tree import Clip, Gen, Photo, Pick, Raw, Text

__all__ = ["ANYTHING", "Either", "LeftToTime", "State", "Variable", "Wrong", "agrees"]

Kinds = frozenset[str]
ABORTED: Kinds = frozenset({"Aborted"})
ANYTHING = object()
"""Agrees with every value."""


class Wrong(Exception):
    """An error of one of these kinds is raised here."""

    def __init__(self, *kinds: str) -> None:
        super().__init__(*sorted(kinds))
        self.kinds: Kinds = frozenset(kinds)


class LeftToTime(BaseException):
    """From here on the result depends on what is faster."""


@dataclass(frozen=True, slots=True)
class Either:
    """A value, or an error of one of these kinds."""

    value: object
    kinds: Kinds


def agrees(found: object, expected: object) -> bool:
    """Whether the language's value is one that the interpreter allows. Pure."""
    match expected:
        case _ if expected is ANYTHING:
            return True
        case Wrong():
            return isinstance(found, BaseException) and type(found).__name__ in expected.kinds
        case Either(value, kinds):
            return agrees(found, value) or agrees(found, Wrong(*kinds))
        case list() if isinstance(found, list):
            return len(found) == len(expected) and all(map(agrees, found, expected))
        case _:
            return type(found) is type(expected) and found == expected


class Variable:
    """A name's value, or what went wrong. `meta` is why its calls ended, if it has calls."""

    def __init__(self, owner: State, *, is_direct: bool = False) -> None:
        self.owner = owner
        self.is_direct = is_direct
        self.is_open = False
        self.value: object = None
        self.streamed = ""
        self.meta: object = None

    def set(self, value: object, streamed: str, meta: object = None) -> None:
        """Give it its value. Changes: the variable."""
        self.value, self.streamed, self.meta = value, streamed, meta

    def put_in_doubt(self, kinds: Kinds) -> None:
        """It may not have had its value when its state ended. Changes: the variable."""
        match self.value:
            case Wrong() | Either():
                known = self.value.kinds | kinds
                doubt = self.value
                self.value = (
                    Wrong(*known) if isinstance(doubt, Wrong) else Either(doubt.value, known)
                )
            case _:
                self.value = Wrong(*kinds) if self.is_open else Either(self.value, kinds)


class State:
    """Content and variables of a run or fork.

    `failure` is what its error may be; `is_seen` says that the error is there for sure by now,
    not only coming; `is_synced` that nothing appended is pending; `is_shaken` that it may have
    been aborted on the way, because of another state.
    """

    def __init__(self) -> None:
        self.content = Content()
        self.role: str | None = None
        self.texts: list[str] = []
        self.variables: dict[str, Variable] = {}
        self.owned: list[Variable] = []
        self.declared: list[str] = []
        self.scopes: list[tuple[str, Variable, list[str]]] = []
        self.added: list[object] = []
        self.has_turned = False
        self.children: list[State] = []
        self.failure: Kinds = frozenset()
        self.is_seen = False
        self.is_synced = True
        self.is_shaken = False
        self.is_joined = False

    # -- appending ---------------------------------------------------------------------------

    def append(self, atoms: Iterable[object]) -> None:
        """Texts, media, gens, picks, ("begin" | "end", role). Raises misuse; or changes it."""
        if self.is_joined:
            raise Wrong("ProgramMisuse")
        atoms = list(atoms)
        role = self.role
        for atom in atoms:
            if isinstance(atom, tuple):
                verb, named = atom
                if (role is not None) if verb == "begin" else (role != named):
                    raise Wrong("ProgramMisuse")
                role = named if verb == "begin" else None
        self.role = role
        self.is_synced = self.is_synced and not atoms
        for atom in atoms:
            self._do(atom)

    def _do(self, atom: object) -> None:
        variable = None
        if isinstance(atom, (Gen, Pick)):
            variable = self.declare(atom.name)
        if self.failure:
            if variable is not None:
                variable.value = Wrong(*self.failure)
            return
        match atom:
            case ("begin", role):
                self.content.begin(role)
                self.has_turned = True
            case ("end", _):
                self.content.end()
                self.has_turned = True
            case Text(text) | Raw(text):
                self.add(atom, text)
            case Photo() | Clip():
                self.add(atom, "")
            case Gen() | Pick() if variable is not None:
                self._call(atom, variable)

    def _call(self, atom: Gen | Pick, variable: Variable) -> None:
        prompt = self.content.prompt()
        if not self.content.said or "BOOM" in prompt:
            kind = "BackendFailed" if self.content.said else "BadRequest"
            variable.value = Wrong(kind)
            self.fail(frozenset({kind}))
        elif isinstance(atom, Pick):
            option = chosen(self.content.ids(), atom)
            variable.set(option, option, {"type": "length", "length": 0})
            self.add(Text(option), option)
        else:
            pairs = answers(prompt, atom)
            texts, reasons = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
            is_list = (atom.n or 1) > 1
            variable.set(
                texts if is_list else texts[0], texts[0], reasons if is_list else reasons[0]
            )
            self.add(Text(texts[0]), texts[0])

    def add(self, piece: object, text: str) -> None:
        """A piece that counts to the content, the text and open scopes. Changes: those."""
        self.content.add(piece)  # type: ignore[arg-type]
        self.added.append(piece)
        self.texts.append(text)
        for _, _, pieces in self.scopes:
            pieces.append(text)

    def declare(self, name: str | None, *, is_direct: bool = False) -> Variable:
        """A new variable under this name. Changes: variables."""
        variable = Variable(self, is_direct=is_direct)
        self.owned.append(variable)
        if name is not None:
            self.variables[name] = variable
            if name not in self.declared:
                self.declared.append(name)
        return variable

    def open_scope(self, name: str) -> None:
        """Text counts to `name` from now on. Raises misuse."""
        self.append(())
        self.is_synced = False
        variable = self.declare(name)
        variable.is_open = True
        if self.failure:
            variable.value = Wrong(*self.failure)
        self.scopes.append((name, variable, []))

    def close_scope(self) -> None:
        """The innermost scope ends. Raises misuse."""
        self.append(())
        self.is_synced = False
        _, variable, pieces = self.scopes.pop()
        variable.is_open = False
        if not self.failure:
            variable.set("".join(pieces), "".join(pieces))

    # -- ending ------------------------------------------------------------------------------

    def fail(self, kinds: Kinds) -> None:
        """A call fails; it is not known when. Changes: everything here and in forks."""
        self.failure = kinds
        for _, variable, _ in self.scopes:
            variable.value = Wrong(*kinds)
        for child in self.children:
            child.shake()

    def shake(self) -> None:
        """Whatever still runs here may be aborted, now or later. Changes: here and in forks."""
        self.is_shaken = self.is_shaken or not self.is_joined
        for child in self.children:
            child.shake()

    def end(self, kinds: Kinds) -> None:
        """It fails now, unless it has. Changes: everything here."""
        if self.failure and self.is_seen:
            return
        self.failure |= kinds
        self.is_seen = True
        for variable in self.owned:
            if not variable.is_direct and (variable.is_open or not self.is_synced):
                variable.put_in_doubt(kinds)
        for child in self.children:
            child.shake()

    def cancel(self) -> None:
        """As the language's `cancel` while the body runs. Changes: here and in forks."""
        self.end(ABORTED)
        for child in self.children:
            child.cancel()

    # -- reading -----------------------------------------------------------------------------

    def settle(self) -> None:
        """Wait for all. Raises LeftToTime; does not raise the failure."""
        if self.is_shaken:
            raise LeftToTime
        self.is_synced = True
        self.is_seen = bool(self.failure)

    def sync(self) -> None:
        """Wait for all. Raises the failure."""
        self.settle()
        if self.failure:
            raise Wrong(*self.failure)

    def text(self) -> str:
        """All text. Raises the failure."""
        self.sync()
        return "".join(self.texts)

    def find(self, name: str) -> Variable:
        """The variable of a name. Raises its error, or what its absence is."""
        variable = self.variables.get(name)
        if variable is None:
            doubt = ABORTED if self.is_shaken else frozenset()
            if self.is_seen and not self.is_shaken:
                raise Wrong(*self.failure)
            raise Wrong("UnknownVariable", *self.failure, *doubt)
        owner = variable.owner
        if owner.is_shaken and not variable.is_direct:
            raise LeftToTime
        if isinstance(variable.value, Wrong):
            if variable.is_open and not owner.is_seen:
                raise Wrong("ProgramMisuse", *variable.value.kinds)
            owner.is_seen = True
            raise Wrong(*variable.value.kinds)
        if isinstance(variable.value, Either):
            raise LeftToTime
        if variable.is_open:
            raise Wrong("ProgramMisuse")
        return variable
