"""The state of a program: what `s` is."""

from __future__ import annotations

import contextlib
import logging
import warnings
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence

from mmserve.core import ProgramMisuse, Usage
from mmserve.lang.execution import Execution
from mmserve.lang.forks import ForkGroup, split
from mmserve.lang.ir import Expr, RoleBegin, RoleEnd, ScopeBegin, ScopeEnd, as_expr
from mmserve.lang.readers import TextReader, converted, wait_for, wait_until_over

__all__ = ["ProgramState"]

_log = logging.getLogger("mmserve.lang")


class ProgramState:
    """Text, media, turns and variables of one run or fork.

    Appending submits and returns; reading waits for what it needs and raises what went wrong.
    Safe to read from any thread.
    """

    def __init__(self, execution: Execution, *, is_streaming: bool = False) -> None:
        self.execution = execution
        self.index = 0
        self.row: int | None = None
        self._is_streaming = is_streaming
        weakref.finalize(self, _report_unread, execution)

    # -- appending ---------------------------------------------------------------------------

    def __iadd__(self, other: object) -> ProgramState:
        if other is None:
            message = "a program appends str or expressions, not NoneType"
            raise TypeError(message)
        self.execution.append(as_expr(other).nodes)
        return self

    def __setitem__(self, name: str, value: object) -> None:
        self.set_var(name, value)

    def set_var(self, name: str, value: object) -> None:
        """Give a name a value; nothing is appended. Changes: variables."""
        with self.execution.monitor:
            self.execution.declare(name).set(value)
            self.execution.monitor.notify()

    def system(
        self, expr: str | Expr | None = None
    ) -> contextlib.AbstractContextManager[ProgramState]:
        """Append a system turn, or hold one open: `with s.system(): ...`."""
        return self._turn("system", expr)

    def user(
        self, expr: str | Expr | None = None
    ) -> contextlib.AbstractContextManager[ProgramState]:
        """Append a user turn, or hold one open: `with s.user(): ...`."""
        return self._turn("user", expr)

    def assistant(
        self, expr: str | Expr | None = None
    ) -> contextlib.AbstractContextManager[ProgramState]:
        """Append an assistant turn, or hold one open: `with s.assistant(): ...`."""
        return self._turn("assistant", expr)

    def _turn(
        self, role: str, expr: str | Expr | None
    ) -> contextlib.AbstractContextManager[ProgramState]:
        if expr is None:
            return self._open_turn(role)
        self.execution.append((RoleBegin(role), *as_expr(expr).nodes, RoleEnd(role)))
        return contextlib.nullcontext(self)

    @contextlib.contextmanager
    def _open_turn(self, role: str) -> Iterator[ProgramState]:
        self.execution.append([RoleBegin(role)])
        try:
            yield self
        finally:
            self.execution.append([RoleEnd(role)])

    @contextlib.contextmanager
    def var_scope(self, name: str) -> Iterator[ProgramState]:
        """Text appended inside becomes the value of `name`."""
        self.execution.append([ScopeBegin(name)])
        variable = self.execution.variables[name]
        variable.is_open = True
        try:
            yield self
        finally:
            self.execution.append([ScopeEnd(name)])
            variable.is_open = False

    @contextlib.contextmanager
    def copy(self) -> Iterator[ProgramState]:
        """A fork of one, joined when the `with` ends; an exception in it cancels the fork."""
        group = self.fork(1)
        try:
            yield group[0]
        except BaseException:
            group.cancel()
            raise
        group.join()

    def fork(
        self, size: int = 1, position_ids_offset: object = None
    ) -> ForkGroup[ProgramState]:
        """Children that continue from here; the parent need not wait.

        Raises ProgramMisuse for a size below 1.
        """
        if position_ids_offset is not None:
            warnings.warn("position_ids_offset has no effect", stacklevel=2)
        children = []
        for index, execution in enumerate(split(self.execution, size)):
            child = type(self)(execution, is_streaming=self._is_streaming)
            child.index = index
            child.row = self.row
            children.append(child)
        return self._group(self.execution, children)

    @staticmethod
    def _group(parent: Execution, children: Sequence[ProgramState]) -> ForkGroup[ProgramState]:
        return ForkGroup(parent, children)

    # -- reading -----------------------------------------------------------------------------

    def __getitem__(self, name: str) -> object:
        return self.get_var(name)

    def __contains__(self, name: object) -> bool:
        with self.execution.monitor:
            return name in self.execution.variables

    def get_var(self, name: str) -> object:
        """The value of a name: text, or a list for `n` above 1 and after a join.

        Raises its error; UnknownVariable if no statement sets it.
        """
        return wait_for(self.execution, name).value

    def value(self, name: str) -> object:
        """The value as `dtype` or the schema says: int, float, bool, str, parsed JSON.

        Raises as `get_var`, and ConstraintRefused if `max_tokens` cut the answer.
        """
        return converted(wait_for(self.execution, name))

    def get_meta_info(self, name: str) -> dict[str, object]:
        """What is known of the call that made `name`; a list after a join or for `n` above 1.

        Raises as `get_var`, and ProgramMisuse if no call made it.
        """
        variable = wait_for(self.execution, name)
        if variable.meta is None:
            message = f"{name!r} was not made by a call, so it has no meta info"
            raise ProgramMisuse(message)
        found: dict[str, object] = variable.meta()
        return found

    def text(self) -> str:
        """All text appended and generated so far, without the template's own. Waits, raises."""
        wait_until_over(self.execution)
        return self.partial_text()

    def partial_text(self) -> str:
        """The text there is by now. Neither waits nor raises."""
        with self.execution.monitor:
            return "".join(self.execution.texts)

    def messages(self) -> list[dict[str, object]]:
        """The turns in OpenAI form, parts in order. Waits, raises."""
        wait_until_over(self.execution)
        return self.execution.conversation.messages()

    def sync(self) -> None:
        """Wait until all that was appended is done. Raises the first error."""
        wait_until_over(self.execution)

    def error(self) -> BaseException | None:
        """The first error, or None. Waits until all that was appended is done."""
        body = self.execution.setting.body
        self.execution.monitor.wait(
            lambda: self.execution.is_over(is_elsewhere=body.is_elsewhere)
        )
        self.execution.is_error_read = True
        return self.execution.error

    @property
    def ret_value(self) -> object:
        """What the body returned. Waits for the body; raises what it raised."""
        body = self.execution.setting.body
        self.execution.monitor.wait(lambda: not body.is_elsewhere)
        if body.error is not None:
            self.execution.is_error_read = True
            raise body.error
        return body.value

    def usage(self) -> Usage:
        """Sum over the calls made so far, forks included. Does not wait."""
        return self.execution.usage()

    def cancel(self) -> None:
        """End what still runs, forks included; reading it raises Aborted."""
        self.execution.cancel()

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """Text of a variable, or all text, as it comes; in one piece without `stream`.

        Raises what went wrong, and UnknownVariable for a name that no statement sets.
        """
        return iter(TextReader(self.execution, var_name, is_streaming=self._is_streaming))

    async def text_async_iter(
        self,
        var_name: str | None = None,
        return_meta_data: bool = False,  # noqa: FBT001, FBT002  the language's order
    ) -> AsyncIterator[object]:
        """Like `text_iter`, without blocking the event loop.

        With `return_meta_data` the items are (text, meta info so far).
        """
        reader = TextReader(self.execution, var_name, is_streaming=self._is_streaming)
        async for text in reader.pieces():
            yield (text, reader.meta()) if return_meta_data else text


def _report_unread(execution: Execution) -> None:
    if execution.error is not None and not execution.is_error_read:
        _log.error("a program failed and nobody read it: %s", execution.error)
