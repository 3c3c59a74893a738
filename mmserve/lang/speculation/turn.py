r"""Chat models: the gens of an assistant turn are answered by one call at the turn's end.

appended   "Name:" gen(a, stop="\n") "\nJob:" gen(b, stop="\n")
reply      "Name: Ann\nJob: baker\nHobby: ..."
values            a ----      b -----
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mmserve.core import (
    BackendFailed,
    ImagePart,
    Output,
    RawPart,
    SamplingParams,
    TextPart,
    Turn,
    Usage,
    VideoPart,
)
from mmserve.lang.calls import news, request_for, time_limit
from mmserve.lang.execution import Execution, Statement
from mmserve.lang.ir import Gen, RoleEnd
from mmserve.lang.parameters import CallOptions
from mmserve.lang.statements import perform
from mmserve.lang.surplus import Cut, Surplus, cut
from mmserve.lang.variables import Answer

__all__ = ["TurnPerformer"]

_NUM_TRIES = 3


@dataclass(frozen=True, slots=True)
class _Value:
    """A gen's part of the reply."""

    text: str
    part: Cut


@dataclass(slots=True)
class _Answered:
    """The values of a turn that are not given out yet, and the end of the call."""

    values: list[_Value]
    end: Output


@dataclass(frozen=True, slots=True)
class TurnPerformer:
    """Carries out statements; a turn's call asks for at least `num_tokens` tokens."""

    num_tokens: int

    def __call__(self, execution: Execution, statement: Statement) -> None:
        """Do it, or put it off to the end of the turn. Changes: the execution. Raises."""
        node = statement.node
        is_end = isinstance(node, RoleEnd)
        if isinstance(node, Gen) or (execution.deferred and not is_end):
            with execution.monitor:
                execution.deferred.append(statement)
            return
        if execution.deferred:
            self._answer_turn(execution)
        perform(execution, statement)

    def _answer_turn(self, execution: Execution) -> None:
        deferred = tuple(execution.deferred)
        gens = [statement.node for statement in deferred if isinstance(statement.node, Gen)]
        options = [execution.setting.options.changed(gen.changes) for gen in gens]
        answered = None
        if len(gens) > 1 or execution.conversation.open_text():
            limits = [one.timeout_s for one in options if one.timeout_s is not None]
            with time_limit(execution, min(limits, default=None)):
                answered = self._ask(execution, deferred, options)
        for statement in deferred:
            if execution.error is not None:
                return
            if answered is not None and isinstance(statement.node, Gen):
                _settle(execution, statement, options.pop(0), answered)
            else:  # a gen alone in its turn is a plain call
                perform(execution, statement)
            with execution.monitor:  # until it is done, a failure must find it
                execution.deferred.pop(0)

    def _ask(
        self,
        execution: Execution,
        deferred: Sequence[Statement],
        options: Sequence[CallOptions],
    ) -> _Answered | None:
        _check_values(execution, options[0])
        _check_media(execution, deferred)
        for _ in range(_NUM_TRIES):
            reply, end = self._reply(execution, deferred, options)
            if execution.error is not None or end is None:
                return None
            values = _parted(reply, execution.conversation.open_text(), deferred, options)
            if values is not None:
                return _Answered(values, end)
        message = f"the model kept to the form of the turn in none of {_NUM_TRIES} replies"
        raise BackendFailed(message, status=None, hint="show it an example of the form")

    def _reply(
        self,
        execution: Execution,
        deferred: Sequence[Statement],
        options: Sequence[CallOptions],
    ) -> tuple[Surplus, Output | None]:
        samplings = [one.call_sampling() for one in options]
        constants = [execution.conversation.open_text(), *map(_constant, deferred)]
        most = sum(len(text.encode()) for text in constants)  # no token is shorter than a byte
        most += sum(sampling.max_new_tokens or 0 for sampling in samplings)
        takes_numbers = execution.setting.limits.abilities.takes("return_logprob")
        sampling = replace(
            samplings[0],
            stop=(),
            max_new_tokens=max(most, self.num_tokens),
            return_logprobs=takes_numbers,
        )
        parts = execution.conversation.parts()
        parts = (*parts[:-1], Turn("assistant", (), is_open=True))
        request = request_for(options[0], parts, sampling)
        outputs = list(news(execution, request))
        if execution.error is not None:
            return Surplus(), None
        return Surplus().extended(outputs), outputs[-1]


def _parted(
    reply: Surplus, head: str, deferred: Sequence[Statement], options: Sequence[CallOptions]
) -> list[_Value] | None:
    """The values of all gens in a reply, or None if it has another form. Pure."""
    if not reply.text.startswith(head):
        return None
    reply = reply.without(len(head))
    values: list[_Value] = []
    num_gens = len(options)
    for statement in deferred:
        match statement.node:
            case Gen():
                value = _front(reply, options[len(values)], is_last=len(values) + 1 == num_gens)
                if value is None:
                    return None
                values.append(value[0])
                reply = value[1]
            case TextPart(text) | RawPart(text):
                is_behind = len(values) == num_gens  # what the program says after its last gen
                if not is_behind and not reply.text.startswith(text):
                    return None
                reply = reply if is_behind else reply.without(len(text))
    return values


def _front(
    reply: Surplus, options: CallOptions, *, is_last: bool
) -> tuple[_Value, Surplus] | None:
    """A gen's value at the front of the reply, and what is left of the reply. Pure."""
    sampling: SamplingParams = options.call_sampling()
    most = sampling.max_new_tokens or 2**31
    try:
        part = cut(reply, sampling.stop, most)
        whole = cut(reply, sampling.stop, 2**31)
    except LookupError:
        return None
    if part is None:  # the reply was cut by its length
        return None
    is_whole = whole is not None and whole.finish.matched is not None
    if not is_last and not is_whole:
        return None
    rest = reply.without((whole or part).num_characters)
    return _Value(reply.text[: part.num_characters], part), rest


def _settle(
    execution: Execution, statement: Statement, options: CallOptions, answered: _Answered
) -> None:
    """Give a gen its value; the turn's first has the call's prompt tokens. Changes: both."""
    value, end = answered.values.pop(0), answered.end
    answer = Answer(end.request_id, options)
    usage = Usage(end.usage.prompt_tokens, value.part.num_tokens)
    output = replace(end, text=value.text, usage=usage, finish=value.part.finish, logprobs=())
    answered.end = replace(end, usage=Usage(0))
    with execution.monitor:
        answer.add(output, value.text)
        execution.answers.append(answer)
        statement.variable.meta = answer.meta
        execution.conversation.add(TextPart(value.text))
        execution.emit(value.text, statement.variable)
        execution.settle(statement.variable, value.text)


def _check_values(execution: Execution, options: CallOptions) -> None:
    sampling = options.call_sampling()
    for name, is_asked in (
        ("n", sampling.n > 1),
        ("return_logprob", sampling.return_logprobs),
        ("stop_regex", bool(sampling.stop_patterns)),
    ):
        if is_asked:
            raise execution.setting.limits.refuse(
                name, f"{name} for several gens in one turn", "give each gen a turn of its own"
            )


def _check_media(execution: Execution, deferred: Sequence[Statement]) -> None:
    said = (*execution.conversation.open_pieces(), *(statement.node for statement in deferred))
    for piece in said:
        if isinstance(piece, (ImagePart, VideoPart)):
            raise execution.setting.limits.refuse(
                "image", "media among the gens of one turn", "show them in a user turn"
            )


def _constant(statement: Statement) -> str:
    node = statement.node
    return node.text if isinstance(node, (TextPart, RawPart)) else ""
