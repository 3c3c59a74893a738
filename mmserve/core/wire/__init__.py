"""The native wire of a server, seen from a client: requests as JSON, replies as values.

    Request -> generate_body -> POST /generate -> output_from, report_from, error_from

Pure: who sends the bytes is no business of it. `lang` and `batch`, which may not know each
other, both call servers with it; the server reads the same form with `server/native`.
"""

from mmserve.core.wire.replies import error_from, output_from, report_from
from mmserve.core.wire.requests import UrlOf, first_reported, generate_body, wire_part

__all__ = [
    "UrlOf",
    "error_from",
    "first_reported",
    "generate_body",
    "output_from",
    "report_from",
    "wire_part",
]
