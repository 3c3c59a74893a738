"""Reading a state: values, texts as they come, meta info."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from mmserve.core import ConstraintRefused, ProgramMisuse, UnknownVariable
from mmserve.lang.execution import Execution
from mmserve.lang.variables import Variable

__all__ = ["TextReader", "converted", "is_readable", "wait_for", "wait_until_over"]


def is_readable(execution: Execution, variable: Variable) -> bool:
    """Whether reading it no longer waits; a scope that this thread holds open never ends so.

    Asked while the monitor is held.
    """
    return variable.is_settled or (variable.is_open and not execution.setting.body.is_elsewhere)


def _check_ended(variable: Variable) -> None:
    if variable.is_open and not variable.is_settled:
        message = f"the scope {variable.name!r} is read before it has ended"
        raise ProgramMisuse(message, hint="read it after the with statement")


def wait_for(execution: Execution, name: str) -> Variable:
    """The settled variable of this name.

    Raises its error; UnknownVariable if no statement sets it, ProgramMisuse for a scope that is
    still open. Blocks until it is settled.
    """
    body = execution.setting.body

    def is_ready() -> bool:
        variable = execution.variables.get(name)
        if variable is not None and (body.is_elsewhere or not execution.is_put_off):
            return is_readable(execution, variable)
        return execution.error is not None or not body.is_elsewhere

    execution.monitor.wait(is_ready)
    variable = execution.variables.get(name)
    if variable is not None and not variable.is_settled:
        execution.check_readable()
        _check_ended(variable)
    if variable is None:
        execution.raise_error()
        message = f"no statement sets {name!r}"
        known = ", ".join(execution.variables) or "none"
        raise UnknownVariable(message, name=name, hint=f"known names: {known}")
    if variable.error is not None:
        execution.is_error_read = True
        raise variable.error
    return variable


def wait_until_over(execution: Execution) -> None:
    """Wait until all that was appended is done. Raises the state's error."""
    body = execution.setting.body
    execution.monitor.wait(lambda: execution.is_over(is_elsewhere=body.is_elsewhere))
    execution.raise_error()
    execution.check_readable()


def converted(variable: Variable) -> object:
    """The value as its `dtype`, schema or join says.

    Raises ConstraintRefused if `max_tokens` cut the answer before it was whole. Pure.
    """
    if variable.entries is not None:
        return [_entry(entry) for entry in variable.entries]
    convert = variable.convert
    if convert is None:
        return variable.value
    metas = variable.meta() if variable.meta is not None else []
    for meta in metas if isinstance(metas, list) else [metas]:
        if meta["finish_reason"]["type"] == "length":
            message = f"the answer {variable.name!r} was cut by max_tokens"
            raise ConstraintRefused(message, reason="cut", hint="raise max_tokens")
    if isinstance(variable.value, list):
        return [convert(text) for text in variable.value]
    return convert(str(variable.value))


def _entry(entry: Variable | None) -> object:
    if entry is None:
        return None
    return entry.error if entry.error is not None else converted(entry)


class TextReader:
    """Where one reader stands in the text of a variable, or of the whole state.

    Mutable; for one thread or task. Without `is_streaming` the text comes in one piece.
    """

    def __init__(self, execution: Execution, name: str | None, *, is_streaming: bool) -> None:
        self._execution = execution
        self._name = name
        self._is_streaming = is_streaming
        self._variable: Variable | None = None
        self._position = 0
        self._has_ended = False

    def __iter__(self) -> Iterator[str]:
        while (text := self._read()) is not None:
            yield text

    def _read(self) -> str | None:
        if self._has_ended:
            return None
        self._execution.monitor.wait(self._is_ready)
        return self._take()

    async def pieces(self) -> AsyncIterator[str]:
        """The same pieces, without blocking the event loop."""
        while not self._has_ended:
            await self._execution.monitor.wait_async(self._is_ready)
            text = self._take()
            if text is not None:
                yield text

    def meta(self) -> object:
        """Meta info of the variable as it stands, or None. Pure."""
        if self._variable is None or self._variable.meta is None:
            return None
        return self._variable.meta()

    def _texts(self) -> list[str]:
        if self._name is None:
            return self._execution.texts
        if self._variable is None:
            self._variable = self._execution.variables.get(self._name)
        return [] if self._variable is None else self._variable.pieces

    def _is_ready(self) -> bool:
        has_news = self._is_streaming and len(self._texts()) > self._position
        return has_news or self._is_over()

    def _is_over(self) -> bool:
        execution = self._execution
        self._texts()
        is_elsewhere = execution.setting.body.is_elsewhere
        if self._variable is not None and (is_elsewhere or not execution.is_put_off):
            return is_readable(execution, self._variable)
        if self._name is None:
            return execution.is_over(is_elsewhere=is_elsewhere)
        return execution.error is not None or not is_elsewhere

    def _take(self) -> str | None:
        with self._execution.monitor:
            texts = self._texts()
            text = "".join(texts[self._position :])
            self._position = len(texts)
            if text and self._is_streaming:
                return text
            self._has_ended = True
            self._raise_error()
            return text or self._whole_value()

    def _raise_error(self) -> None:
        if self._variable is None or not self._variable.is_settled:
            self._execution.check_readable()
        if self._variable is not None:
            _check_ended(self._variable)
            if self._variable.error is not None:
                self._execution.is_error_read = True
                raise self._variable.error
        else:
            self._execution.raise_error()
            if self._name is not None:
                message = f"no statement sets {self._name!r}"
                raise UnknownVariable(message, name=self._name)

    def _whole_value(self) -> str | None:
        variable = self._variable
        if variable is None or variable.pieces or not isinstance(variable.value, str):
            return None
        return variable.value or None
