"""The loop: inbox, plan, run, commit, outbox; and the door where the two wings meet.

Owns every request that is under way. `Engine` is the `Client` port in this process; `cli`,
tests and user programs make it, while server, language and batch see only the port.

    submit -> Intake (worker threads) -> inbox -> EngineLoop (one thread) -> ticket -> reader
                 headers, template,        plan -> runner -> commit -> text
                 limits, grammar           (load.py joins planning and tensor wing)

`remote` has the same port with the engine in another process; so names are imported when asked
for, and a process that only serves HTTP has no torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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


_HOMES = {
    "EMBEDDED": "load",
    "Answer": "answer",
    "Engine": "engine",
    "EngineTicket": "ticket",
    "Parts": "load",
    "collect": "answer",
    "join_parts": "load",
    "load_parts": "load",
    "locate_model": "load",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
    from importlib import import_module  # noqa: PLC0415 - keeps `dir` to what is given away

    if name not in _HOMES:
        raise AttributeError(f"module 'mmserve.engine' has no attribute {name!r}")
    return getattr(import_module(f"mmserve.engine.{_HOMES[name]}"), name)
