"""Running a program's body on placeholders, with the real states and a recorder below them."""

from __future__ import annotations

import contextlib
import contextvars
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

from mmserve.core import ProgramMisuse
from mmserve.lang.backends.abilities import EVERYTHING, Limits, check_node
from mmserve.lang.backends.port import Backend
from mmserve.lang.body import Body
from mmserve.lang.execution import Execution, Setting, Statement
from mmserve.lang.forks import ForkGroup, OnError
from mmserve.lang.ir import Gen, Hole, Picture, Prepared, ScopeBegin, Select, Snapshot
from mmserve.lang.monitor import Monitor
from mmserve.lang.parameters import CallOptions
from mmserve.lang.state import ProgramState
from mmserve.lang.tracing.graph import Graph
from mmserve.lang.tracing.placeholder import Placeholder, place_of
from mmserve.lang.tracing.recorder import PrefixEnd, Recorder

__all__ = ["constant_prefix", "is_tracing", "trace"]

_tracing: contextvars.ContextVar[bool] = contextvars.ContextVar("tracing", default=False)


def is_tracing() -> bool:
    """Whether a body is being traced in this context."""
    return _tracing.get()


def trace(
    name: str,
    function: Callable[..., object],
    known: Mapping[str, object],
    backend: Backend | None = None,
) -> Graph:
    """Run `function` on placeholders for all it is not given, and give what it appends.

    Raises what the body raises; ProgramMisuse, naming the line, where it needs a value that is
    unknown; UnsupportedByBackend for what `backend` cannot do.
    """
    recorder = Recorder()
    state = _state(recorder, backend)
    value = _run(function, state, known)
    return Graph(name, tuple(recorder.nodes), recorder.variables, value)


def constant_prefix(
    function: Callable[..., object], known: Mapping[str, object], backend: Backend
) -> tuple[Prepared | Picture, ...]:
    """What the program appends before the first call or unknown value.

    The body is run on placeholders up to there. Raises what the body raises until then.
    """
    recorder = Recorder(is_prefix_only=True)
    with contextlib.suppress(PrefixEnd):
        _run(function, _state(recorder, backend), known)
    return tuple(recorder.prefix)


def _state(recorder: Recorder, backend: Backend | None) -> _TracedState:
    limits = Limits("a trace", EVERYTHING)
    if backend is not None:
        limits = Limits(backend.name, backend.abilities)
    nobody = cast(Backend, backend)  # a trace asks nobody
    setting = Setting(nobody, limits, CallOptions(), Body(), Monitor(), recorder)
    return _TracedState(_TracedExecution(setting))


def _run(
    function: Callable[..., object], state: _TracedState, known: Mapping[str, object]
) -> object:
    arguments = dict(known)
    for name, parameter in list(inspect.signature(function).parameters.items())[1:]:
        is_open = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if name not in known and parameter.default is parameter.empty and not is_open:
            arguments[name] = Placeholder(name)
    token = _tracing.set(True)
    state.execution.setting.body.enter()
    try:
        return function(state, **arguments)
    except (TypeError, AttributeError) as error:
        if "Placeholder" not in str(error):
            raise
        message = "the program needs a value that is unknown while it is traced"
        message = f"{message}, {place_of(error)}: {error}"
        raise ProgramMisuse(message, hint="trace it with the value given") from error
    finally:
        _tracing.reset(token)


class _TracedExecution(Execution):
    """Hands each node to the recorder at once; nothing is loaded, queued or asked."""

    def append(self, nodes: Iterable[Prepared | Picture]) -> None:
        """Record the nodes. Raises as `Execution.append`. Changes: the graph, variables."""
        self.check_open()
        for node in nodes:
            if not isinstance(node, (Picture, Hole)):
                check_node(node, self.place, self.setting.limits)
                self.place = self.place.after(node)
            name = node.name if isinstance(node, (Gen, Select, ScopeBegin)) else None
            variable = self.declare(name)
            self.setting.perform(self, Statement(cast(Prepared, node), variable))
            variable.set(Placeholder(name or "a text"))
            if isinstance(node, Snapshot):
                node.release()


class _TracedState(ProgramState):
    """A state whose answers are placeholders."""

    def text(self) -> str:
        """A placeholder."""
        return cast(str, Placeholder("the text of the state"))

    def value(self, name: str) -> object:
        """A placeholder."""
        return self.get_var(name)

    def get_meta_info(self, name: str) -> dict[str, object]:
        """A placeholder."""
        return cast("dict[str, object]", Placeholder(f"the meta info of {name}"))

    @staticmethod
    def _group(parent: Execution, children: Sequence[ProgramState]) -> ForkGroup[ProgramState]:
        return _TracedGroup(parent, children)


class _TracedGroup(ForkGroup[ProgramState]):
    """Children whose join shows in the graph."""

    def join(self, mode: str = "gather_variable", *, on_error: OnError = "raise") -> None:
        """As `ForkGroup.join`. Changes: the graph, too."""
        super().join(mode, on_error=on_error)
        recorder = cast(Recorder, self._parent.setting.perform)
        recorder.join(self._parent, [child.execution for child in self])
