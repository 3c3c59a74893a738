"""Carries out one statement of a state: text, media, turns, scopes, calls, choices, forks."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from mmserve.core import (
    ImagePart,
    MmserveError,
    RawPart,
    Request,
    SamplingParams,
    TextPart,
    TokenLogprob,
    TokensPart,
    VideoPart,
)
from mmserve.lang.backends.port import Call, OptionScore
from mmserve.lang.backends.scoring import scoring_request, whole_output
from mmserve.lang.calls import request_for, start_call, time_limit
from mmserve.lang.choices import Entry, with_shared_numbers
from mmserve.lang.execution import Execution, Statement
from mmserve.lang.generation import generate
from mmserve.lang.ir import Gen, RoleBegin, RoleEnd, ScopeBegin, ScopeEnd, Select, Snapshot
from mmserve.lang.variables import Answer, Variable, logprob_entry

__all__ = ["perform", "record"]

_NOTHING = SamplingParams(max_new_tokens=0, temperature=0.0)


def perform(execution: Execution, statement: Statement) -> None:
    """Do it, waiting for the model where it must. Changes: the execution. Raises what fails."""
    match statement.node:
        case Gen() as node:
            generate(execution, node, statement)
        case Select() as node:
            _choose(execution, node, statement.variable)
        case Snapshot() as node:
            _share(execution, node)
        case _:
            record(execution, statement)


def record(execution: Execution, statement: Statement) -> None:
    """Carry out a statement that needs no model. Changes: the execution."""
    conversation = execution.conversation
    with execution.monitor:
        match statement.node:
            case TextPart(text) | RawPart(text) as piece:
                conversation.add(piece)
                execution.emit(text, statement.variable)
            case ImagePart() | VideoPart() as piece:
                conversation.add(piece)
            case RoleBegin(role):
                conversation.begin(role)
            case RoleEnd():
                conversation.end()
            case ScopeBegin():
                execution.open_scope(statement.variable)
            case ScopeEnd(name):
                execution.close_scope(name)


# -- a choice --------------------------------------------------------------------------------


def _choose(execution: Execution, node: Select, variable: Variable) -> None:
    options = execution.setting.options
    request = request_for(options, execution.conversation.parts(), _NOTHING)
    with time_limit(execution, node.timeout_s or options.timeout_s):
        scores = execution.setting.backend.score(request, node.choices, execution.hold)
        alone = None
        if getattr(node.method, "requires_unconditional_logprobs", False):
            alone = _alone(execution, request, scores.options)
    if execution.error is not None:
        return
    meta: dict[str, object] = {"choice_index": scores.winner}
    if scores.winner is None:
        meta = _decide(node, scores.options, alone)
    winner = node.choices[int(str(meta["choice_index"]))]
    answer = Answer(request.request_id, options)
    answer.add(scores.prompt_end, "")
    meta = answer.meta() | meta
    with execution.monitor:
        execution.answers.append(answer)
        variable.meta = lambda: meta
        execution.conversation.add(TextPart(winner))
        execution.conversation.is_fresh = False
        execution.emit(winner, variable)
        execution.settle(variable, winner)


def _alone(
    execution: Execution, request: Request, scores: Sequence[OptionScore]
) -> list[list[Entry]]:
    """The options' tokens with nothing before them; the first counts 0."""
    calls: list[Call | None] = []
    for score in scores:
        ids = TokensPart(tuple(token.token_id for token in score.tokens))
        is_single = len(score.tokens) == 1
        calls.append(
            None if is_single else start_call(execution, scoring_request(request, (ids,), 0))
        )
    rows: list[list[Entry]] = []
    for score, call in zip(scores, calls, strict=True):
        later = (whole_output(call).prompt_logprobs or ())[1:] if call is not None else ()
        rows.append([[0.0, score.tokens[0].token_id, None], *map(_entry, later)])
    return rows


def _decide(
    node: Select, scores: Sequence[OptionScore], alone: list[list[Entry]] | None
) -> dict[str, object]:
    tokens = with_shared_numbers([list(map(_entry, score.tokens)) for score in scores])
    following = [[_entry(token) for token in score.following] for score in scores]
    means = [sum(float(str(entry[0])) for entry in row) / len(row) for row in tokens]
    decision = node.method(
        choices=list(node.choices),
        normalized_prompt_logprobs=means,
        input_token_logprobs=tokens,
        output_token_logprobs=following,
        unconditional_token_logprobs=alone,
    )
    if decision.decision not in node.choices:
        message = f"a rule chose {decision.decision!r}, which is no option"
        raise ValueError(message)
    return {
        "normalized_prompt_logprobs": means,
        "input_token_logprobs": tokens,
        "output_token_logprobs": following,
        **(decision.meta_info or {}),
        "choice_index": node.choices.index(decision.decision),
    }


def _entry(token: TokenLogprob) -> Entry:
    return logprob_entry(token, has_text=False)


# -- a fork ----------------------------------------------------------------------------------


def _share(execution: Execution, node: Snapshot) -> None:
    conversation = execution.conversation
    options = execution.setting.options
    has_use = execution.setting.limits.abilities.has_prefix_calls
    if node.is_shared and conversation.is_fresh and has_use:
        request = request_for(options, conversation.parts(), _NOTHING)
        answer = Answer(request.request_id, options)
        # It is no statement of the program: the children's own calls tell what is wrong.
        with contextlib.suppress(MmserveError), time_limit(execution, options.timeout_s):
            end = whole_output(start_call(execution, request))
            with execution.monitor:
                answer.add(end, "")
                execution.answers.append(answer)
                conversation.is_fresh = False
    if execution.error is None:
        node.release()
