"""A choice among texts by a bias on tokens, for completion APIs that score no prompt.

options  yes, no, none    allowed: y.. n..    the model picks "n"
         no, none         allowed: o..        it picks "o"
         no | none        no is complete: the next token is asked for freely; "ne" goes on,
                          anything else ends the choice with "no"
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from mmserve.core import BackendFailed, Finish, Output, Request, SamplingParams, total_usage
from mmserve.lang.backends.port import Scores
from mmserve.lang.backends.scoring import continued

__all__ = ["choose_by_bias"]

_STRONGEST = 100.0


def choose_by_bias(
    request: Request,
    options: Sequence[str],
    ask: Callable[[Request], Output],
    first_token: Callable[[str], int],
) -> Scores:
    """The option that greedy decoding reaches when only options may be spelled.

    Args:
        request: the prompt.
        options: the texts, none empty; of equal ones the first wins.
        ask: sends a request and waits for its whole answer.
        first_token: id of the first token of a text, as the API's model has it.

    Raises BackendFailed if an answer spells no option, and what `ask` and `first_token` raise.
    Cost: one call of one token for each token of the winner until it is the only one left.
    """
    chosen = ""
    usages = []
    while len(possible := {text for text in options if text.startswith(chosen)}) > 1:
        is_complete = chosen in possible
        longer = possible - {chosen}
        tokens = {first_token(text[len(chosen) :]) for text in longer}
        bias = () if is_complete else tuple((token, _STRONGEST) for token in sorted(tokens))
        answer = ask(_one_token(request, chosen, bias))
        usages.append(answer.usage)
        spelled = chosen + answer.text
        goes_on = bool(answer.text) and any(text.startswith(spelled) for text in longer)
        if is_complete and not goes_on:
            possible = {chosen}
            break
        if not goes_on:
            message = f"the API answered {answer.text!r}, which begins none of the options"
            raise BackendFailed(message, status=None)
        chosen = spelled
    end = Output(request.request_id, 0, "", (), total_usage(usages), finish=Finish("stop"))
    (winner,) = possible
    return Scores(end, (), list(options).index(winner))


def _one_token(request: Request, chosen: str, bias: tuple[tuple[int, float], ...]) -> Request:
    sampling = SamplingParams(max_new_tokens=1, temperature=0.0, logit_bias=bias)
    parts = continued(request.parts, chosen) if chosen else request.parts
    return replace(request, parts=parts, sampling=sampling)
