"""Fork and join: children that continue a state, and what becomes of them.

parent   A B |fork .......................... join| x = [x of child 0, x of child 1]
child 0  A B  C gen("x")  ....................^
child 1  A B  D gen("x")  ....................^
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Generic, Literal, Protocol, TypeVar

from mmserve.core import ProgramMisuse
from mmserve.lang.execution import Execution
from mmserve.lang.ir import Expr, Snapshot, as_expr
from mmserve.lang.readers import is_readable
from mmserve.lang.variables import Variable

__all__ = ["ForkGroup", "OnError", "split"]

OnError = Literal["raise", "keep"]


class Child(Protocol):
    """A state that a fork made."""

    @property
    def execution(self) -> Execution:
        """Its inside."""
        ...


StateT = TypeVar("StateT", bound=Child)


def split(parent: Execution, size: int) -> list[Execution]:
    """Children of `parent` that continue it once it has come to this point.

    Raises ProgramMisuse for a size below 1, a joined parent, or calls that wait for the end of
    their turn. Cost: with two or more children, one call for the content appended since the
    last call. Changes: parent's queue.
    """
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        message = f"fork size is {size!r}, it must be at least 1"
        raise ProgramMisuse(message)
    parent.check_open()
    parent.check_readable()
    children = [type(parent)(parent.setting) for _ in range(size)]
    with parent.monitor:
        for child in children:
            child.is_held = True
            child.place = parent.place
            child.variables = dict(parent.variables)

    def release() -> None:
        for child in children:
            child.open_up(parent)

    def refuse(error: BaseException) -> None:
        for child in children:
            child.fail(error)

    with parent.monitor:  # a failure comes before both, or after both and finds the snapshot
        parent.children.extend(children)
        parent.append([Snapshot(release, refuse, is_shared=size > 1)])
    return children


class ForkGroup(Generic[StateT]):
    """The children of one fork, in order."""

    def __init__(self, parent: Execution, children: Sequence[StateT]) -> None:
        self._parent = parent
        self._children = tuple(children)
        self._role = parent.place.role

    def __getitem__(self, index: int) -> StateT:
        return self._children[index]

    def __setitem__(self, index: int, child: StateT) -> None:
        if child is not self._children[index]:  # `group[i] += expr` assigns the child to itself
            message = "the children of a fork cannot be replaced"
            raise TypeError(message)

    def __len__(self) -> int:
        return len(self._children)

    def __iter__(self) -> Iterator[StateT]:
        return iter(self._children)

    def __iadd__(self, other: object) -> ForkGroup[StateT]:
        for child, expr in zip(self._children, self._spread(other), strict=True):
            child.execution.append(expr.nodes)
        return self

    def _spread(self, other: object) -> list[Expr]:
        if isinstance(other, (list, tuple)):
            if len(other) != len(self._children):
                message = f"{len(other)} expressions are appended to {len(self)} forks"
                raise ProgramMisuse(message)
            return [as_expr(item) for item in other]
        if callable(other):
            return [as_expr(other(index)) for index in range(len(self))]
        if other is None:
            message = "a program appends str or expressions, not NoneType"
            raise TypeError(message)
        return [as_expr(other)] * len(self)

    def as_completed(self, var_name: str | None = None) -> Completions[StateT]:
        """Children in the order in which they, or their variable, are ready or have failed."""
        return Completions(self._parent, self._children, var_name)

    def cancel(self) -> None:
        """End all children that still run. Changes: the children."""
        for child in self._children:
            child.execution.cancel()

    def join(self, mode: str = "gather_variable", *, on_error: OnError = "raise") -> None:
        """Wait for the children and bring back what they made.

        Args:
            mode: "gather_variable" makes each name a list in the parent, None where missing;
                "concate_and_append" appends what the children appended.
            on_error: "raise" cancels the siblings of a failed child and raises its error;
                "keep" puts the exception in its place.

        Raises ProgramMisuse for unknown modes, and for children that do not stand in the turn
        of the fork when their texts are appended. Changes: the parent; the children are closed.
        """
        if mode not in ("gather_variable", "concate_and_append"):
            message = f"join mode is {mode!r}, allowed: gather_variable, concate_and_append"
            raise ProgramMisuse(message)
        if on_error not in ("raise", "keep"):
            message = f"on_error is {on_error!r}, allowed are raise and keep"
            raise ProgramMisuse(message)
        self._parent.check_open()
        children = [child.execution for child in self._children]
        _wait_for_all(self._parent, children, on_error)
        if mode == "gather_variable":
            _gather(self._parent, children)
        else:
            self._append_texts(children)
        for child in children:
            child.is_joined = True

    def _append_texts(self, children: Sequence[Execution]) -> None:
        pieces = []
        for index, child in enumerate(children):
            if child.error is not None:
                continue
            if child.conversation.has_turned or self._parent.place.role != self._role:
                message = f"fork {index} does not stand in the turn it was forked in"
                raise ProgramMisuse(message, hint="join with gather_variable")
            pieces.extend(child.conversation.added)
        self._parent.append(pieces)


def _wait_for_all(parent: Execution, children: Sequence[Execution], on_error: str) -> None:
    def has_failed() -> bool:
        return on_error == "raise" and any(child.error is not None for child in children)

    parent.monitor.wait(
        lambda: (
            parent.error is not None or has_failed() or all(child.is_idle for child in children)
        )
    )
    parent.raise_error()
    for child in children:
        child.check_readable()
        if child.error is not None:
            child.is_error_read = True
    for child in children:
        if on_error == "raise" and child.error is not None:
            for sibling in children:
                sibling.abandon(child.error)
                sibling.is_error_read = True
            raise child.error


def _gather(parent: Execution, children: Sequence[Execution]) -> None:
    names = list(dict.fromkeys(name for child in children for name in child.declared))
    with parent.monitor:
        for name in names:
            entries = [
                child.variables[name] if name in child.declared else None for child in children
            ]
            joined = parent.declare(name)
            joined.entries = entries
            joined.meta = _all_meta(entries)
            joined.set([_entry_value(entry) for entry in entries])
        parent.monitor.notify()


def _entry_value(entry: Variable | None) -> object:
    if entry is None:
        return None
    return entry.value if entry.error is None else entry.error


def _all_meta(entries: Sequence[Variable | None]) -> Callable[[], Any]:
    return lambda: [
        entry.meta() if entry is not None and entry.meta is not None and entry.is_done else None
        for entry in entries
    ]


class Completions(Generic[StateT]):
    """Children as they complete, for `for` and `async for`."""

    def __init__(
        self, parent: Execution, children: Sequence[StateT], var_name: str | None
    ) -> None:
        self._monitor = parent.monitor
        self._waiting = list(children)
        self._var_name = var_name

    def __iter__(self) -> Iterator[StateT]:
        while self._waiting:
            self._monitor.wait(lambda: self._next() is not None)
            yield self._take()

    async def __aiter__(self) -> AsyncIterator[StateT]:
        while self._waiting:
            await self._monitor.wait_async(lambda: self._next() is not None)
            yield self._take()

    def _next(self) -> StateT | None:
        return next((child for child in self._waiting if self._is_ready(child)), None)

    def _is_ready(self, child: StateT) -> bool:
        execution = child.execution
        if self._var_name is None or execution.error is not None:
            return execution.is_idle
        variable = execution.variables.get(self._var_name)
        if variable is None or execution.is_put_off:
            return execution.is_idle
        return is_readable(execution, variable)

    def _take(self) -> StateT:
        with self._monitor:
            child = self._next()
        if child is None:
            message = "a completed fork is pending again"
            raise ProgramMisuse(message, hint="append to forks before or after the loop")
        self._waiting.remove(child)
        return child
