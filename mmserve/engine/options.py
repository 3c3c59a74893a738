"""Options of one request: what their tokens share, and their numbers put together again.

A token that stands at one place in the tree of options is computed and scored once, by the
first option that has it:

    prompt   P P P P                     sequence 0
    option   P P P P  may  be            sequence 1 scores  may be
    option   P P P P  may  be  so        sequence 2 scores  so
    option   P P P P  may  not           sequence 3 scores  not
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from mmserve.core import BadRequest, Finish, Output, Request, TokenLogprob

__all__ = ["Branch", "OptionOutputs", "branches_of", "check_options"]


@dataclass(frozen=True, slots=True)
class Branch:
    """An option's way through the tree of options.

    Args:
        token_ids: its tokens.
        places: for each token a number of its own for itself and those before it.
        num_shared: tokens at its start that an earlier option has, too.
    """

    token_ids: tuple[int, ...]
    places: tuple[int, ...]
    num_shared: int


def branches_of(options: Iterable[Sequence[int]]) -> tuple[Branch, ...]:
    """The options' ways through their tree, in order. Pure."""
    children: dict[tuple[int, int], int] = {}
    branches = []
    for token_ids in options:
        num_known, place, places = len(children), 0, []
        for token_id in token_ids:
            place = children.setdefault((place, token_id), len(children) + 1)
            places.append(place)
        num_shared = sum(place <= num_known for place in places)
        branches.append(Branch(tuple(token_ids), tuple(places), num_shared))
    return tuple(branches)


def check_options(request: Request) -> None:
    """Raise BadRequest if the options cannot be scored under the request's parameters. Pure."""
    options, sampling = request.options, request.sampling
    if not isinstance(options, tuple) or not all(isinstance(text, str) for text in options):
        raise BadRequest("options holds something else than texts", field="options")
    if not all(options):
        place = options.index("")
        message = f"option {place} is empty"
        raise BadRequest(message, field="options", reason="empty", position=place)
    is_plain = sampling.max_new_tokens == 0 and sampling.n == 1 and sampling.constraint is None
    if options and not is_plain:
        raise BadRequest(
            "options are scored, nothing is generated behind them",
            field="options",
            reason="conflict",
            hint="set max_new_tokens to 0, and leave out n and constraint",
        )


class OptionOutputs:
    """Gathers the outputs of a request with options and hands them over when all have ended.

    If one sequence fails or is aborted, all end as it did. For the loop's thread.

    Args:
        put: takes the outputs, in order of their index.
        branches: of the options.
    """

    def __init__(self, put: Callable[[Output], None], branches: tuple[Branch, ...]) -> None:
        self._put = put
        self._branches = branches
        self._ends: dict[int, Output] = {}

    def put(self, output: Output) -> None:
        """Take the only output of a sequence. Changes: what is gathered."""
        self._ends[output.index] = output
        if len(self._ends) <= len(self._branches):
            return
        outputs = [self._ends[index] for index in range(len(self._ends))]
        failure = next((o.finish for o in outputs if _is_failure(o.finish)), None)
        scored = outputs if failure is not None else self._scored(outputs)
        for one in scored:
            self._put(one if failure is None else _failed(one, failure))

    def _scored(self, outputs: Sequence[Output]) -> list[Output]:
        """The outputs with the log-probabilities of all tokens of their options. Pure."""
        known: dict[int, TokenLogprob] = {}
        pairs = list(zip(self._branches, outputs[1:], strict=True))
        for branch, output in pairs:
            own = output.prompt_logprobs or ()
            known.update(zip(branch.places[branch.num_shared :], own, strict=True))
        return [
            outputs[0],
            *(
                replace(output, prompt_logprobs=tuple(known[place] for place in branch.places))
                for branch, output in pairs
            ),
        ]


def _is_failure(finish: Finish | None) -> bool:
    return finish is None or finish.reason in ("abort", "error")


def _failed(output: Output, failure: Finish) -> Output:
    return replace(output, logprobs=(), prompt_logprobs=None, finish=failure)
