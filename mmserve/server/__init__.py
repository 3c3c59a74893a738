"""The server: HTTP on one side, the `Client` port of `core` on the other; knows no engine.

    body -> fields -> core.Request -> calls -> ticket -> drafts -> whole answer or events
                                                   └── the client left: abort

Owns the HTTP status codes (`errors`), the wire formats, the API key, and the ids clients see.
Called by `cli` and by users who embed the app.
"""

from mmserve.server.app import create_app
from mmserve.server.errors import STATUS, error_object, status_of
from mmserve.server.running import RunningServer, serve

__all__ = ["STATUS", "RunningServer", "create_app", "error_object", "serve", "status_of"]
