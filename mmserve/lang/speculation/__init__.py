r"""Speculation for black-box APIs: one call answers several gens of a program.

completion   "A:" gen "\nB:" gen      one long answer; each gen takes its part from it  ahead
chat         assistant turn of gens   one call at the turn's end, parted by its texts   turn

Answers never differ in form from those without it; a mismatch costs the surplus, or is a typed
error. Our own engines never speculate.
"""

from collections.abc import Callable

from mmserve.lang.backends.abilities import Limits
from mmserve.lang.execution import Execution, Statement
from mmserve.lang.speculation.ahead import AheadPerformer
from mmserve.lang.speculation.turn import TurnPerformer
from mmserve.lang.statements import perform

__all__ = ["performer"]


def performer(limits: Limits) -> Callable[[Execution, Statement], None]:
    """What carries out the statements of a run under `limits`. Pure."""
    if limits.num_spec_tokens is None:
        return perform
    if limits.collects_turns:
        return TurnPerformer(limits.num_spec_tokens)
    return AheadPerformer(limits.num_spec_tokens)
