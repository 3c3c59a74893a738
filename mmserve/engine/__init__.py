"""The loop: inbox, plan, run, commit, outbox; and the door where the two wings meet.

Owns every request that is under way. `Engine` is the `Client` port in this process; `cli`,
tests and user programs make it, while server, language and batch see only the port.

    submit -> Intake (worker threads) -> inbox -> EngineLoop (one thread) -> ticket -> reader
                 headers, template,        plan -> runner -> commit -> text
                 limits, grammar           (load.py joins planning and tensor wing)
"""

from mmserve.engine.answer import Answer, collect
from mmserve.engine.engine import Engine
from mmserve.engine.load import EMBEDDED, Parts, join_parts, load_parts, locate_model
from mmserve.engine.ticket import EngineTicket

__all__ = [
    "EMBEDDED",
    "Answer",
    "Engine",
    "EngineTicket",
    "Parts",
    "collect",
    "join_parts",
    "load_parts",
    "locate_model",
]
