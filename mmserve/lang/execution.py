"""A state's inside: its statements in a queue, and the thread that carries them out in order.

    append (any thread)              worker (started on demand, ends when the queue is empty)
    nodes -> queue ................> text, media, roles -> conversation
             variables declared      gen, select        -> backend -> variables, conversation
                                     snapshot           -> children get a copy and start

Everything mutable is guarded by the run's monitor; the model is waited for without it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mmserve.core import (
    Aborted,
    ImagePart,
    ProgramMisuse,
    Usage,
    VideoPart,
    total_usage,
)
from mmserve.lang.backends.abilities import Limits, check_node
from mmserve.lang.backends.port import Backend, Call
from mmserve.lang.body import Body
from mmserve.lang.conversation import Conversation
from mmserve.lang.ir import (
    Gen,
    Picture,
    Prepared,
    ScopeBegin,
    Select,
    Snapshot,
)
from mmserve.lang.monitor import Monitor
from mmserve.lang.parameters import CallOptions
from mmserve.lang.places import Place
from mmserve.lang.surplus import Surplus
from mmserve.lang.variables import Answer, Variable

__all__ = ["Execution", "Setting", "Statement"]


@dataclass(frozen=True, slots=True)
class Statement:
    """A node in the queue, the variable it sets, and the one that takes its thinking."""

    node: Prepared
    variable: Variable
    thinking: Variable | None = None

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Those it sets. Pure."""
        return (self.variable,) if self.thinking is None else (self.variable, self.thinking)

    def fail(self, error: BaseException) -> None:
        """Fail its variables, unless they have ended. Changes: the variables."""
        for variable in self.variables:
            variable.fail(error)


@dataclass(frozen=True, slots=True)
class Setting:
    """What all states of a run share.

    `limits` are those of the backend; `options` are what gens inherit; `perform` carries out
    one statement; `is_stepwise` makes each append wait for its statements; a `gate` is passed
    before each call, with the seconds that it may take.
    """

    backend: Backend
    limits: Limits
    options: CallOptions
    body: Body
    monitor: Monitor
    perform: Callable[[Execution, Statement], None]
    is_stepwise: bool = False
    gate: Callable[[Execution, float | None], None] | None = None


class Execution:
    """Content, variables and pending statements of one state.

    `surplus` is text that an API has written ahead; `deferred` are statements of the open turn
    that wait for its end, where one call answers them all.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.monitor = setting.monitor
        self.conversation = Conversation()
        self.texts: list[str] = []
        self.variables: dict[str, Variable] = {}
        self.declared: list[str] = []
        self.place = Place()
        self.error: BaseException | None = None
        self.is_error_read = False
        self.is_joined = False
        self.is_held = False
        self.children: list[Execution] = []
        self.answers: list[Answer] = []
        self.surplus = Surplus()
        self.deferred: list[Statement] = []
        self._queue: deque[Statement] = deque()
        self._current: Statement | None = None
        self._calls: list[Call] = []
        self._scopes: list[Variable] = []
        self._is_draining = False

    # -- appending ---------------------------------------------------------------------------

    def append(self, nodes: Iterable[Prepared | Picture]) -> None:
        """Queue statements; media are loaded here, roles and the backend's limits are checked.

        Raises MediaRefused, ProgramMisuse and UnsupportedByBackend with nothing queued. After a
        failure nothing is queued and the names are failed. Changes: queue, variables.
        """
        self.check_open()
        ready = [node.load() if isinstance(node, Picture) else node for node in nodes]
        self._start_early(ready)
        with self.monitor:
            place = self.place
            for node in ready:
                check_node(node, place, self.setting.limits)
                place = place.after(node)
            self.place = place
            for node in ready:
                self._enqueue(node)
            self.monitor.notify()
        self._kick()
        if self.setting.is_stepwise:
            self.monitor.wait(lambda: self.is_idle)

    def _start_early(self, nodes: Iterable[Prepared]) -> None:
        """Begin to prepare media that will have to wait for calls before them."""
        with self.monitor:
            is_waiting = not self.is_idle
        if is_waiting:
            for node in nodes:
                if isinstance(node, (ImagePart, VideoPart)):
                    self.setting.backend.prepare(node, self.setting.options.cache_salt)

    def check_open(self) -> None:
        """Raise ProgramMisuse if the state was joined. Pure."""
        if self.is_joined:
            message = "something is appended to a joined fork"
            raise ProgramMisuse(message, hint="append to the state it was joined into")

    def statement_of(self, node: Prepared) -> Statement:
        """The node with the variables it sets, known from now on. Changes: variables."""
        name = node.name if isinstance(node, (Gen, Select, ScopeBegin)) else None
        variable, thinking = self.declare(name), None
        if isinstance(node, Gen):
            variable.convert = node.convert
            if node.reasoning is not None:
                thinking = self.declare(f"{name}_reasoning_content" if name else None)
        return Statement(node, variable, thinking)

    def _enqueue(self, node: Prepared) -> None:
        statement = self.statement_of(node)
        if self.error is not None:
            statement.fail(self.error)
            if isinstance(node, Snapshot):
                node.refuse(self.error)
        else:
            self._queue.append(statement)

    def declare(self, name: str | None) -> Variable:
        """A new variable, known by its name from now on. Changes: variables."""
        variable = Variable(name)
        if name is not None:
            self.variables[name] = variable
            if name not in self.declared:
                self.declared.append(name)
        return variable

    @property
    def is_put_off(self) -> bool:
        """Whether calls wait for the end of the open turn, so that it cannot be read yet."""
        return self.setting.limits.collects_turns and bool(self.place.role and self.place.gens)

    def check_readable(self) -> None:
        """Raise ProgramMisuse if calls wait for the end of a turn that is still open. Pure."""
        if self.is_put_off and self.error is None:
            message = "an answer is read inside its turn, which is answered as one at its end"
            raise ProgramMisuse(message, hint="close the assistant turn first")

    def open_up(self, parent: Execution) -> None:
        """Take over the content of `parent` and start. Changes: everything here."""
        with self.monitor:
            self.conversation = parent.conversation.copy()
            self.texts = list(parent.texts)
            self.surplus = parent.surplus
            self.is_held = False
            self.monitor.notify()
        self._kick()

    # -- carrying out ------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether nothing appended is still to be done. Asked while the monitor is held."""
        if self.error is not None:
            return True
        return not (self._queue or self._is_draining or self.is_held)

    def _kick(self) -> None:
        with self.monitor:
            if self._is_draining or self.is_held or not self._queue or self.error is not None:
                return
            self._is_draining = True
            is_slow = bool(self.deferred) or any(
                _waits_for_model(statement.node) for statement in self._queue
            )
        if is_slow:
            threading.Thread(target=self._drain, name="mmserve-state", daemon=True).start()
        else:
            self._drain()

    def _drain(self) -> None:
        while True:
            with self.monitor:
                self._current = None
                self._calls = []
                if self.error is not None or not self._queue:
                    self._is_draining = False
                    self.monitor.notify()
                    return
                statement = self._current = self._queue.popleft()
            try:
                if self.setting.gate is not None and _waits_for_model(statement.node):
                    self.setting.gate(self, self._time_for(statement.node))
                self.setting.perform(self, statement)
            except Exception as error:  # noqa: BLE001  delivered to whoever reads the state
                self.fail(error)

    def _time_for(self, node: Prepared) -> float | None:
        options = self.setting.options
        if isinstance(node, Gen):
            return options.changed(node.changes).timeout_s
        return (node.timeout_s if isinstance(node, Select) else None) or options.timeout_s

    # -- what statements do to it ------------------------------------------------------------

    def emit(self, text: str, variable: Variable) -> None:
        """Text that counts: to readers, to `variable` and to open scopes. Changes: those."""
        with self.monitor:
            if text and self.error is None:
                self.texts.append(text)
                for target in (variable, *self._scopes):
                    target.pieces.append(text)
                self.monitor.notify()

    def emit_thinking(self, text: str, variable: Variable) -> None:
        """Thinking, which counts to its variable only. Changes: the variable."""
        with self.monitor:
            if text and self.error is None:
                variable.pieces.append(text)
                self.monitor.notify()

    def open_scope(self, variable: Variable) -> None:
        """Text counts to `variable` from now on. Changes: scopes."""
        with self.monitor:
            self._scopes.append(variable)

    def close_scope(self, name: str) -> None:
        """The innermost scope of this name ends. Changes: scopes, its variable."""
        with self.monitor:
            for variable in reversed(self._scopes):
                if variable.name == name:
                    self._scopes.remove(variable)
                    variable.set("".join(variable.pieces))
                    self.monitor.notify()
                    return

    def hold(self, call: Call) -> None:
        """A call of the current statement; it is aborted if the state fails. Changes: calls."""
        with self.monitor:
            self._calls.append(call)
            is_late = self.error is not None
        if is_late:
            call.cancel()

    def settle(self, variable: Variable, value: object) -> None:
        """A variable's value is there. Changes: the variable."""
        with self.monitor:
            if self.error is None:
                variable.set(value)
                self.monitor.notify()

    # -- ending ------------------------------------------------------------------------------

    def fail(self, error: BaseException) -> None:
        """End with an error: pending names fail, the call and all forks are aborted.

        Only the first error counts. Changes: everything here and in forks.
        """
        with self.monitor:
            if self.error is not None:
                return
            self.error = error
            pending = [self._current, *self._queue] if self._current else list(self._queue)
            for statement in (*self.deferred, *pending):
                statement.fail(error)
            for scope in self._scopes:
                scope.fail(error)
            self._queue.clear()
            calls, children = list(self._calls), list(self.children)
            self.monitor.notify()
        for call in calls:
            call.cancel()
        for statement in pending:
            if isinstance(statement.node, Snapshot):
                statement.node.refuse(error)
        for child in children:
            child.abandon(error)

    def abandon(self, error: BaseException) -> None:
        """Abort what still runs here and in forks, because of `error`. Changes: as `fail`."""
        with self.monitor:
            children = list(self.children)
            is_idle = self.is_idle
        if not is_idle:
            self.is_error_read = True  # a consequence; the cause is reported
            self.fail(_aborted_by(error))
        for child in children:
            child.abandon(error)

    def cancel(self) -> None:
        """End with Aborted unless all is done; forks too. Changes: as `fail`."""
        with self.monitor:
            children = list(self.children)
            is_over = self.is_idle and not self.setting.body.is_running
        if not is_over:
            self.is_error_read = True  # asked for
            self.fail(Aborted("the program was cancelled"))
        for child in children:
            child.cancel()

    # -- reading -----------------------------------------------------------------------------

    def is_over(self, *, is_elsewhere: bool) -> bool:
        """Whether no more text can come for a reader. Asked while the monitor is held."""
        return self.error is not None or (self.is_idle and not is_elsewhere)

    def raise_error(self) -> None:
        """Raise the error, if there is one. Changes: the error counts as read."""
        if self.error is not None:
            self.is_error_read = True
            raise self.error

    def usage(self) -> Usage:
        """Sum over the calls so far, here and in forks. Pure."""
        with self.monitor:
            counts = [answer.usage for answer in self.answers]
            children = list(self.children)
        counts += [child.usage() for child in children]
        return total_usage(counts)


def _aborted_by(error: BaseException) -> BaseException:
    aborted = Aborted("the state this one was forked from failed", hint=str(error) or None)
    aborted.__cause__ = error
    return aborted


def _waits_for_model(node: Prepared) -> bool:
    return isinstance(node, (Gen, Select)) or (isinstance(node, Snapshot) and node.is_shared)
