"""The engine in a process of its own, behind the same `Client` port.

    API process                                       engine process
    RemoteEngine  --- submit, cancel, calls --->   Host -> Engine (loop, media plane)
         ^        <-- report, news, results, beat --
    Supervisor: starts it, notices that it died or hangs, starts another

`messages` are what is said, `codec` how it is written, `wire` the socket with its files of
large bytes. `host` alone imports the engine; nothing else here knows of torch.
"""

from mmserve.engine.remote.client import RemoteEngine
from mmserve.engine.remote.supervisor import Supervision, Supervisor

__all__ = ["RemoteEngine", "Supervision", "Supervisor"]
