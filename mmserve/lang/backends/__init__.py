"""Who answers a program's calls: an engine in this process, or a server over HTTP.

statement -> core.Request -> Backend.start -> Call.outputs -> core.Output

The port hides which; both give the same answers. Used by the language's own modules only.
"""

from mmserve.lang.backends.client import ClientBackend
from mmserve.lang.backends.endpoint import RuntimeEndpoint
from mmserve.lang.backends.port import Backend, Call

__all__ = ["Backend", "Call", "ClientBackend", "RuntimeEndpoint"]
