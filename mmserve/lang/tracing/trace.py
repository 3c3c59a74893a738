"""Running a program's body on placeholders, with the real states and a recorder below them."""

from __future__ import annotations

import contextlib
import contextvars
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

from mmserve.core import BytesSource, ImagePart, RequestRefused, TextPart, VideoPart
from mmserve.lang.backends.abilities import Limits, check_node
from mmserve.lang.backends.port import Backend
from mmserve.lang.body import Body
from mmserve.lang.execution import Execution, Setting
from mmserve.lang.forks import ForkGroup, OnError
from mmserve.lang.ir import Hole, Picture, Prepared, Snapshot
from mmserve.lang.monitor import Monitor
from mmserve.lang.parameters import CallOptions
from mmserve.lang.state import ProgramState
from mmserve.lang.tracing.graph import Graph
from mmserve.lang.tracing.placeholder import Placeholder, UnknownValue, place_of
from mmserve.lang.tracing.recorder import PrefixEnd, Recorder

__all__ = ["constant_prefix", "is_tracing", "trace"]

_tracing: contextvars.ContextVar[bool] = contextvars.ContextVar("tracing", default=False)


def is_tracing() -> bool:
    """Whether a body is being traced in this context."""
    return _tracing.get()


def trace(
    name: str,
    function: Callable[..., object],
    known: inspect.BoundArguments,
    limits: Limits | None = None,
) -> Graph:
    """Run `function` on placeholders for all but `known`, and give what it appends.

    Raises what the body raises; ProgramMisuse, naming the line, where it needs a value that is
    unknown; UnsupportedByBackend for what `limits` forbid.
    """
    recorder = Recorder()
    state = _state(recorder, limits or Limits("a trace"))
    value = _run(function, state, known)
    return Graph(name, tuple(recorder.nodes), recorder.variables, value)


def constant_prefix(
    function: Callable[..., object], known: inspect.BoundArguments, limits: Limits
) -> tuple[Prepared | Picture, ...]:
    """What the program appends before its first call or use of an unknown value.

    The body is run on placeholders up to there. Raises what the body raises until then.
    """
    recorder = Recorder(is_prefix_only=True)
    with contextlib.suppress(PrefixEnd, UnknownValue):
        _run(function, _state(recorder, limits), known)
    return tuple(recorder.prefix)


def _state(recorder: Recorder, limits: Limits) -> _TracedState:
    nobody = cast(Backend, None)  # a trace asks nobody
    setting = Setting(nobody, limits, CallOptions(), Body(), Monitor(), recorder)
    return _TracedState(_TracedExecution(setting))


def _run(
    function: Callable[..., object], state: _TracedState, known: inspect.BoundArguments
) -> object:
    known.arguments["s"] = state
    known.apply_defaults()
    for name in known.signature.parameters:
        known.arguments.setdefault(name, Placeholder(name))
    token = _tracing.set(True)
    state.execution.setting.body.enter()
    try:
        return function(*known.args, **known.kwargs)
    except (TypeError, AttributeError, RequestRefused) as error:
        if isinstance(error, UnknownValue) or "Placeholder" not in str(error):
            raise
        message = "the program needs a value that is unknown while it is traced"
        message = f"{message}, {place_of(error)}: {error}"
        raise UnknownValue(message, hint="trace it with the value given") from error
    finally:
        _tracing.reset(token)


class _TracedExecution(Execution):
    """Hands each node to the recorder at once; nothing is loaded, queued or asked."""

    def append(self, nodes: Iterable[Prepared | Picture]) -> None:
        """Record the nodes. Raises as `Execution.append`. Changes: the graph, variables."""
        self.check_open()
        for node in nodes:
            checked = _stand_in(node)
            check_node(checked, self.place, self.setting.limits)
            self.place = self.place.after(checked)
            statement = self.statement_of(cast(Prepared, node))
            self.setting.perform(self, statement)
            for variable in statement.variables:
                variable.set(Placeholder(variable.name or "a text"))
            if isinstance(node, Snapshot):
                node.release()


def _stand_in(node: Prepared | Picture) -> Prepared:
    """Something of the kind that an unknown value or unread media will be. Pure."""
    match node:
        case Hole(name):
            return TextPart(name)
        case Picture():
            source = BytesSource(b"")
            return ImagePart(source) if node.kind == "image" else VideoPart(source)
    return node


class _TracedState(ProgramState):
    """A state whose answers are placeholders."""

    def text(self) -> str:
        """A placeholder."""
        return cast(str, Placeholder("the text of the state"))

    def partial_text(self) -> str:
        """A placeholder."""
        return self.text()

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """A placeholder in one piece. Raises UnknownVariable."""
        return iter([self.text() if var_name is None else cast(str, self.get_var(var_name))])

    def messages(self) -> list[dict[str, object]]:
        """A placeholder."""
        return cast("list[dict[str, object]]", Placeholder("the messages of the state"))

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
