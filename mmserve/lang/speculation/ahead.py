r"""Completion models: a call asks for more than its gen needs, later gens take from the rest.

"Name:"  gen(stop="\n")      asks k tokens:  " Ann\nAge: 7\nCity: Rome\n..."
                             value " Ann", surplus "\nAge: 7\nCity: Rome\n..."
"\nAge:" gen(stop="\n")      the text leads the surplus and is stripped; value " 7", no call
"\nJob:" gen(stop="\n")      the surplus goes on otherwise: dropped, the gen is a call again
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mmserve.core import BackendFailed, Output, RawPart, SamplingParams, TextPart, Usage
from mmserve.lang.backends.scoring import continued
from mmserve.lang.calls import news, request_for, time_limit
from mmserve.lang.execution import Execution, Statement
from mmserve.lang.ir import Gen, ScopeBegin, ScopeEnd, Snapshot
from mmserve.lang.parameters import CallOptions
from mmserve.lang.statements import perform
from mmserve.lang.surplus import Cut, Surplus, certain_length, cut
from mmserve.lang.variables import Answer, Variable

__all__ = ["AheadPerformer"]


@dataclass(frozen=True, slots=True)
class AheadPerformer:
    """Carries out statements; a call asks for at least `num_tokens` tokens."""

    num_tokens: int

    def __call__(self, execution: Execution, statement: Statement) -> None:
        """Do it, waiting for the model where it must. Changes: the execution. Raises."""
        match statement.node:
            case Gen() as node:
                options = execution.setting.options.changed(node.changes)
                if _can_be_cut(node, options):
                    try:
                        _Generation(self, execution, options, statement.variable).run()
                    except LookupError:  # only token boundaries could tell: ask plainly
                        pass
                    else:
                        return
                execution.surplus = Surplus()
            case TextPart(text) | RawPart(text):
                execution.surplus = execution.surplus.behind(text)
            case ScopeBegin() | ScopeEnd() | Snapshot():
                pass
            case _:
                execution.surplus = Surplus()
        perform(execution, statement)


def _can_be_cut(node: Gen, options: CallOptions) -> bool:
    sampling = options.call_sampling()
    is_plain = node.constraint is None and node.reasoning is None
    is_plain = is_plain and not sampling.stop_patterns
    is_counted = bool(sampling.max_new_tokens)
    return is_plain and is_counted and sampling.n == 1 and not sampling.return_logprobs


class _Generation:
    """One gen under way."""

    def __init__(
        self,
        performer: AheadPerformer,
        execution: Execution,
        options: CallOptions,
        variable: Variable,
    ) -> None:
        self._performer = performer
        self._execution = execution
        self._options = options
        self._variable = variable
        self._sampling = options.call_sampling()
        self._max_tokens = self._sampling.max_new_tokens or 0
        self._values = _drawn_with(self._sampling)
        self._num_emitted = 0
        self._prompt_tokens = 0

    def run(self) -> None:
        """Take the value from the surplus, asking for more as need be. Changes: the execution.

        Raises LookupError before any text is released if token boundaries are needed but
        unknown, and what the calls raise.
        """
        execution = self._execution
        surplus = execution.surplus
        if not surplus.text or surplus.values != self._values:
            surplus = Surplus(values=self._values)
        with time_limit(execution, self._options.timeout_s):
            part = self._cut(surplus) if surplus.text else None
            while part is None and execution.error is None:
                surplus = self._ask(surplus)
                part = self._cut(surplus)
        if part is not None and execution.error is None:
            self._settle(surplus, part)

    def _cut(self, surplus: Surplus) -> Cut | None:
        try:
            return cut(surplus, self._sampling.stop, self._max_tokens)
        except LookupError:
            if not self._num_emitted:
                raise
            message = "the API's tokens do not spell its text, so max_tokens cannot be kept"
            raise BackendFailed(message, status=None) from None

    def _ask(self, surplus: Surplus) -> Surplus:
        execution = self._execution
        known = surplus.num_tokens(len(surplus.text))
        num_left = self._max_tokens - (surplus.most_tokens if known is None else known)
        sampling = replace(
            self._sampling,
            stop=(),
            max_new_tokens=max(num_left, self._performer.num_tokens),
            return_logprobs=True,
        )
        parts = execution.conversation.parts()
        request = request_for(self._options, continued(parts, surplus.text), sampling)
        outputs: list[Output] = []
        next_look = 1
        for output in news(execution, request):
            outputs.append(output)
            if len(outputs) >= next_look:  # looks lie ever further apart: each costs the whole
                self._release(surplus.extended(outputs))
                next_look += 1 + len(outputs) // 16
        if execution.error is not None:
            return surplus
        grown = surplus.extended(outputs)
        self._prompt_tokens += outputs[-1].usage.prompt_tokens
        is_stuck = grown.text == surplus.text
        return replace(grown, has_ended=True) if is_stuck else grown

    def _release(self, surplus: Surplus) -> None:
        """Hand readers what is certain by now. Changes: the variable's text."""
        length = certain_length(surplus, self._sampling.stop, self._max_tokens)
        if length > self._num_emitted:
            self._execution.emit(surplus.text[self._num_emitted : length], self._variable)
            self._num_emitted = length

    def _settle(self, surplus: Surplus, part: Cut) -> None:
        execution, text = self._execution, surplus.text[: part.num_characters]
        answer = Answer(surplus.request_id, self._options)
        usage = Usage(self._prompt_tokens, part.num_tokens)
        end = Output(surplus.request_id, 0, text, (), usage, finish=part.finish)
        with execution.monitor:
            execution.emit(text[self._num_emitted :], self._variable)
            answer.add(end, text)
            execution.answers.append(answer)
            self._variable.meta = answer.meta
            execution.conversation.add(TextPart(text))
            execution.surplus = surplus.without(part.num_characters)
            execution.settle(self._variable, text)


def _drawn_with(sampling: SamplingParams) -> SamplingParams:
    return replace(sampling, stop=(), max_new_tokens=None)
