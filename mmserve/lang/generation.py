"""A gen's call: its answers as they grow, parted from their thinking.

output -> thinking | answer -> variables, the state's text, streams
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from mmserve.core import Output, Request, TextPart
from mmserve.lang.calls import news, request_for, time_limit
from mmserve.lang.execution import Execution, Statement
from mmserve.lang.ir import Gen
from mmserve.lang.parameters import CallOptions
from mmserve.lang.reasoning import NOTATIONS, ReasoningSplit
from mmserve.lang.variables import Answer

__all__ = ["generate"]


def generate(execution: Execution, node: Gen, statement: Statement) -> None:
    """Call the model and wait for its answers. Changes: the execution. Raises what fails."""
    options = execution.setting.options.changed(node.changes)
    sampling = options.call_sampling()
    sampling = replace(
        sampling, constraint=node.constraint, stop=(*sampling.stop, *node.extra_stops)
    )
    if node.reasoning is not None:  # the marks may be control tokens
        sampling = replace(sampling, skip_special_tokens=False)
    request = request_for(options, execution.conversation.parts(), sampling)
    lines = [_Line(request, options, node.reasoning) for _ in range(sampling.n)]
    answers = [line.answer for line in lines]
    with execution.monitor:
        execution.answers.extend(answers)
        statement.variable.meta = _of_all([answer.meta for answer in answers])
    with time_limit(execution, options.timeout_s):
        _collect(execution, request, lines, statement)
    with execution.monitor:
        if execution.error is None:
            execution.conversation.add(TextPart(answers[0].text))
            execution.conversation.is_fresh = False
            if statement.thinking is not None:
                statement.thinking.meta = statement.variable.meta
                execution.settle(statement.thinking, _one_or_all([x.thinking for x in lines]))
            execution.settle(statement.variable, _one_or_all([x.answer.text for x in lines]))


def _collect(
    execution: Execution, request: Request, lines: Sequence[_Line], statement: Statement
) -> None:
    for output in news(execution, request):
        line = lines[output.index]
        if line.answer.finish is not None:
            continue
        with execution.monitor:
            thinking, text = line.add(output)
        if output.index == 0:
            if statement.thinking is not None:
                execution.emit_thinking(thinking, statement.thinking)
            execution.emit(text, statement.variable)


class _Line:
    """One of the answers to a call. Written by the thread of the call."""

    def __init__(self, request: Request, options: CallOptions, reasoning: str | None) -> None:
        self.answer = Answer(request.request_id, options)
        self.thinking = ""
        self._split = None if reasoning is None else ReasoningSplit(NOTATIONS[reasoning])

    def add(self, output: Output) -> tuple[str, str]:
        """Take news; gives the thinking and the text that count by it. Changes: the line."""
        thinking, text = "", output.text
        if self._split is not None:
            thinking, text = self._split.feed(text)
            if output.finish is not None:
                last_thinking, last_text = self._split.close()
                thinking, text = thinking + last_thinking, text + last_text
        self.thinking += thinking
        self.answer.add(output, text)
        return thinking, text


def _of_all(metas: Sequence[Callable[[], dict[str, object]]]) -> Callable[[], object]:
    if len(metas) == 1:
        return metas[0]
    return lambda: [meta() for meta in metas]


def _one_or_all(texts: list[str]) -> object:
    return texts if len(texts) > 1 else texts[0]
