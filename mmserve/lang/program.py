"""`@function`: a Python function over a state, run once, in batches, or from an event loop."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn, overload

from mmserve.core import Aborted, ProgramMisuse
from mmserve.lang.backends.abilities import Limits, check_options
from mmserve.lang.backends.port import Backend
from mmserve.lang.batch import Batch, BatchStyle
from mmserve.lang.body import Body
from mmserve.lang.compiler import Gate, Plan
from mmserve.lang.execution import Execution, Setting
from mmserve.lang.expressions import gen
from mmserve.lang.monitor import Monitor
from mmserve.lang.parameters import RUN_NAMES, CallOptions, run_options
from mmserve.lang.settings import as_backend, global_config
from mmserve.lang.speculation import performer
from mmserve.lang.state import ProgramState
from mmserve.lang.tracing import Graph, constant_prefix, is_tracing, trace

__all__ = ["Program", "function"]

_SWITCHES = ("stream", "backend", "use_thread")
_FORMER_WORDS = {"api_num_spec_tokens": "num_api_spec_tokens"}


@dataclass(frozen=True, slots=True)
class _Launch:
    """A state that has not begun, and the arguments of its body."""

    state: ProgramState
    function: Callable[..., object]
    args: tuple[object, ...]
    kwargs: Mapping[str, object]

    def run_body(self) -> None:
        """Run the body in this thread. Raises what it raises; the state then has failed."""
        execution = self.state.execution
        body = execution.setting.body
        body.enter()
        try:
            body.value = self.function(self.state, *self.args, **self.kwargs)
        except BaseException as error:
            is_plain = isinstance(error, Exception)
            body.error = error if is_plain else Aborted("the program was interrupted")
            execution.fail(body.error)
            raise
        finally:
            with execution.monitor:
                body.is_running = False
                execution.monitor.notify()

    def run_quietly(self) -> None:
        """Run the body in this thread; what it raises is kept for the state's readers."""
        with contextlib.suppress(BaseException):
            self.run_body()


class Program:
    """A program of the language; `function` makes it. Immutable.

    Args:
        function: the body.
        num_api_spec_tokens: least tokens of a call to a black-box backend, to speculate with.
        bound: parameters that are fixed.
        backend: answers runs that name none; the default one when None.
        plan: what `compile` has learnt; None runs as written.
    """

    def __init__(
        self,
        function: Callable[..., object],
        num_api_spec_tokens: int | None = None,
        bound: Mapping[str, object] | None = None,
        backend: Backend | None = None,
        plan: Plan | None = None,
    ) -> None:
        self.function = function
        self.num_api_spec_tokens = num_api_spec_tokens
        self.bound = dict(bound or {})
        self._backend = backend
        self._plan = plan
        self.__name__ = getattr(function, "__name__", "program")
        self.__doc__ = function.__doc__
        self._signature = inspect.signature(function)
        if next(iter(self._signature.parameters), None) != "s":
            message = f"the first parameter of {self.__name__} must be called s"
            raise ProgramMisuse(message)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  the program's own
        """Run it; inside a trace, trace it."""
        if is_tracing():
            own = {name: value for name, value in kwargs.items() if self._is_own(name)}
            return trace(self.__name__, self.function, self._known(args, own))
        return self.run(*args, **kwargs)

    def trace(self, *, backend: object = None, **known: object) -> Graph:
        """Run the body on placeholders for all but `known`, and give what it appends.

        Parameters with a default have their default. Nothing is asked of a backend; a given one
        refuses what it cannot do. Raises what the body raises, and ProgramMisuse, naming the
        line, where the body needs a value that is unknown.
        """
        limits = None
        if backend is not None:
            limits = self._limits(as_backend(backend), CallOptions())
        return trace(self.__name__, self.function, self._known((), known), limits)

    def cache(self, backend: object = None) -> None:
        """Compute the constant prefix, media included, so that runs find it cached.

        The body is run on placeholders up to its first call or use of an unknown value. Waits.
        Raises what the body raises until then, and what the call raises. Backends that keep no
        prefixes are not asked.
        """
        used = self._used(backend)
        limits = self._limits(used, CallOptions())
        prefix = constant_prefix(self.function, self._known((), {}), limits)
        state = self._begin(used, CallOptions(), (), {}).state
        state.execution.setting.body.enter()
        state.execution.append(prefix)
        if state.execution.conversation.is_fresh and used.abilities.has_prefix_calls:
            state += gen(max_tokens=0, temperature=0.0)
        state.sync()

    def pin(self, backend: object = None) -> NoReturn:
        """The former name of `cache`. Raises ProgramMisuse, which says so."""
        del backend
        message = "a program has no pin"
        raise ProgramMisuse(message, hint="use cache, which computes the constant prefix early")

    def compile(self, *, backend: object = None) -> Program:
        """The program with the same answers, perhaps sooner; the body is not run here.

        Media among the arguments are fetched, decoded and encoded from the start of a run, rows
        of a batch that share media and prefixes start side by side, and the prefix that all
        rows share is computed once. A given `backend` answers runs that name none.
        """
        used = self._backend if backend is None else as_backend(backend)
        return Program(
            self.function, self.num_api_spec_tokens, self.bound, used, Plan(self.function)
        )

    def graph(self, form: str = "text") -> str:
        """The program's trace as text for 80 columns, or as an SVG file with form "svg".

        Runs the body on placeholders. Raises as `trace`, and BadRequest for another form.
        """
        return self.trace(backend=self._backend).draw(form)

    def _used(self, backend: object) -> Backend:
        return as_backend(self._backend if backend is None else backend)

    def _known(
        self, args: tuple[object, ...], known: Mapping[str, object]
    ) -> inspect.BoundArguments:
        self._refuse_bound(known)
        return self._signature.bind_partial(None, *args, **{**self.bound, **known})

    def bind(self, **kwargs: object) -> Program:
        """The program with these parameters fixed.

        Raises ProgramMisuse for a name already bound and TypeError for an unknown one. Pure.
        """
        self._refuse_bound(kwargs)
        self._signature.bind_partial(None, **kwargs)
        bound = {**self.bound, **kwargs}
        return Program(
            self.function, self.num_api_spec_tokens, bound, self._backend, self._plan
        )

    def run(self, *args: Any, **kwargs: Any) -> ProgramState:  # noqa: ANN401  the program's own
        """Run once. Returns when the Python body has ended, perhaps before the model.

        Keyword arguments are the program's, values that every gen inherits (`max_new_tokens`,
        `temperature`, ...; also `timeout_s`, `cache_salt`, `priority`), and:

        * backend: an engine or backend; the default one when absent.
        * stream: return at once, so that text can be read as it comes.
        * use_thread: False makes each statement end before the next.

        Raises what the body raises, and BadRequest for values that cannot be served.
        """
        launch = self._launch(args, kwargs)
        if kwargs.get("stream", False):
            threading.Thread(
                target=launch.run_quietly, name="mmserve-body", daemon=True
            ).start()
        else:
            try:
                launch.run_body()
            except BaseException:
                launch.state.execution.is_error_read = True
                raise
        return launch.state

    async def run_async(self, *args: Any, **kwargs: Any) -> ProgramState:  # noqa: ANN401  the program's own
        """Like `run`, without blocking the event loop; returns when the model has ended, too.

        With `stream` it returns at once. A cancelled task cancels the program.
        """
        launch = self._launch(args, kwargs)
        state, body = launch.state, launch.state.execution.setting.body
        threading.Thread(target=launch.run_quietly, name="mmserve-body", daemon=True).start()
        if kwargs.get("stream", False):
            return state
        try:
            await state.execution.monitor.wait_async(
                lambda: not body.is_running and state.execution.is_idle
            )
        except BaseException:
            state.cancel()
            raise
        if body.error is not None:
            state.execution.is_error_read = True
            raise body.error
        return state

    @overload
    def run_batch(
        self,
        batch_kwargs: Sequence[object],
        *,
        backend: object = None,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: Literal[False] = False,
        on_error: Literal["return", "raise"] = "return",
        as_completed: Literal[False] = False,
        **values: Any,  # noqa: ANN401  typed by `run_options`
    ) -> list[ProgramState]: ...

    @overload
    def run_batch(
        self,
        batch_kwargs: Sequence[object],
        *,
        backend: object = None,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        on_error: Literal["return", "raise"] = "return",
        as_completed: bool = False,
        **values: Any,  # noqa: ANN401  typed by `run_options`
    ) -> list[ProgramState] | Iterator[ProgramState]: ...

    def run_batch(
        self,
        batch_kwargs: Sequence[object],
        *,
        backend: object = None,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        on_error: Literal["return", "raise"] = "return",
        as_completed: bool = False,
        **values: Any,
    ) -> list[ProgramState] | Iterator[ProgramState]:
        """Run once for each row; rows do not touch each other.

        Args:
            batch_kwargs: rows, all dicts or all tuples; checked before anything runs.
            backend: an engine or backend; the default one when absent.
            num_threads: most rows at once; "auto" is max(96, 16 x CPUs).
            progress_bar: show one.
            generator_style: give states lazily, in order, instead of a list.
            on_error: "return" keeps a failed row's error in its state; "raise" cancels the rest
                and raises it, with the row's number as `.row`.
            as_completed: give states lazily, in the order in which they finish.
            **values: what every gen inherits, as in `run`.

        Raises ProgramMisuse for rows that do not fit the program and for an unknown `on_error`,
        UnsupportedByBackend for values that the backend cannot serve. States have ended when
        given.
        """
        rows = self._rows(batch_kwargs)
        use_thread = bool(values.pop("use_thread", True))
        options = run_options(values)
        if not rows:
            return iter(()) if generator_style or as_completed else []
        if on_error not in ("return", "raise"):
            message = f"on_error is {on_error!r}, allowed are return and raise"
            raise ProgramMisuse(message)
        used = self._used(backend)
        self._limits(used, options)
        style = BatchStyle(
            num_threads,
            has_progress_bar=progress_bar,
            is_lazy=generator_style or as_completed,
            is_by_completion=as_completed,
            is_raising=on_error == "raise",
        )
        order, new_gate = None, None
        if self._plan is not None:
            order = self._plan.order([self._arguments(*row) for row in rows], style)
            new_gate = self._plan.gates(used, style.threads_for(len(rows)))

        def begin(index: int) -> tuple[ProgramState, Callable[[], None]]:
            gate = None if new_gate is None else new_gate()
            self._start_early(used, options, *rows[index])
            launch = self._begin(used, options, *rows[index], use_thread=use_thread, gate=gate)
            launch.state.row = index
            return launch.state, launch.run_quietly

        states = Batch(begin, len(rows), style, order).states()
        return states if style.is_lazy else list(states)

    # -- arguments ---------------------------------------------------------------------------

    def _launch(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> _Launch:
        own = {name: value for name, value in kwargs.items() if self._is_own(name)}
        values = {
            name: value
            for name, value in kwargs.items()
            if name not in own and name not in _SWITCHES
        }
        self._refuse_bound(own)
        self._signature.bind(None, *args, **{**self.bound, **own})
        backend, options = self._used(kwargs.get("backend")), run_options(values)
        self._start_early(backend, options, args, own)
        return self._begin(
            backend,
            options,
            args,
            own,
            use_thread=bool(kwargs.get("use_thread", True)),
            is_streaming=bool(kwargs.get("stream", False)),
        )

    def _is_own(self, name: str) -> bool:
        is_ours = name in RUN_NAMES or name in _SWITCHES
        if is_ours and name in self._signature.parameters:
            message = f"{name} is a parameter of the program and of run"
            raise ProgramMisuse(message, hint="give the program's by position")
        return not is_ours

    def _begin(
        self,
        backend: Backend,
        options: CallOptions,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        *,
        use_thread: bool = True,
        is_streaming: bool = False,
        gate: Gate | None = None,
    ) -> _Launch:
        skips = global_config.skip_special_tokens_in_output
        sampling = replace(options.sampling, skip_special_tokens=skips)
        options = replace(options, sampling=sampling)
        limits = self._limits(backend, options)
        monitor = Monitor()
        setting = Setting(
            backend,
            limits,
            options,
            Body(),
            monitor,
            performer(limits),
            is_stepwise=not use_thread,
            gate=gate,
        )
        execution = Execution(setting)
        monitor.interrupt = execution.cancel
        state = ProgramState(execution, is_streaming=is_streaming)
        return _Launch(state, self.function, args, {**self.bound, **kwargs})

    def _limits(self, backend: Backend, options: CallOptions) -> Limits:
        limits = Limits.of(backend.name, backend.abilities, self.num_api_spec_tokens, options)
        check_options(options, limits)
        return limits

    def _start_early(
        self,
        backend: Backend,
        options: CallOptions,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
    ) -> None:
        if self._plan is not None:
            self._plan.start_early(backend, options, self._arguments(args, kwargs))

    def _arguments(
        self, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> dict[str, object]:
        bound = self._signature.bind(None, *args, **{**self.bound, **kwargs})
        bound.apply_defaults()
        return dict(bound.arguments)

    def _refuse_bound(self, kwargs: Mapping[str, object]) -> None:
        for name in kwargs:
            if name in self.bound:
                message = f"{name} is already bound"
                raise ProgramMisuse(message)

    def _rows(
        self, batch: Sequence[object]
    ) -> list[tuple[tuple[object, ...], Mapping[str, object]]]:
        if not isinstance(batch, (list, tuple)):
            message = f"a batch is a list of rows, not {type(batch).__name__}"
            raise ProgramMisuse(message)
        rows: list[tuple[tuple[object, ...], Mapping[str, object]]] = []
        for index, row in enumerate(batch):
            if type(row) is not type(batch[0]) or not isinstance(row, (dict, tuple)):
                message = f"row {index} is a {type(row).__name__}; all are dicts or all tuples"
                raise ProgramMisuse(message, row=index)
            rows.append(((), dict(row)) if isinstance(row, dict) else (row, {}))
            self._check_row(index, *rows[-1])
        return rows

    def _check_row(
        self, index: int, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> None:
        self._refuse_bound(kwargs)
        try:
            self._signature.bind(None, *args, **{**self.bound, **kwargs})
        except TypeError as error:
            message = f"row {index} does not fit {self.__name__}: {error}"
            raise ProgramMisuse(message, row=index) from error


@overload
def function(program: Callable[..., object], /) -> Program: ...


@overload
def function(
    *, num_api_spec_tokens: int | None = None
) -> Callable[[Callable[..., object]], Program]: ...


def function(
    program: Callable[..., object] | None = None,
    *,
    num_api_spec_tokens: int | None = None,
    **unknown: object,
) -> Program | Callable[[Callable[..., object]], Program]:
    """Make a program of `def f(s, ...)`.

    Args:
        program: the function; its first parameter is called s.
        num_api_spec_tokens: for black-box backends; no effect on an engine of ours.
        **unknown: words that there are no longer.

    Raises ProgramMisuse for another first parameter, TypeError for an unknown word.
    """
    for word in unknown:
        hint = f", it is now {_FORMER_WORDS[word]}" if word in _FORMER_WORDS else ""
        message = f"function has no parameter {word}{hint}"
        raise TypeError(message)
    if program is not None:
        return Program(program, num_api_spec_tokens)
    return lambda decorated: Program(decorated, num_api_spec_tokens)
