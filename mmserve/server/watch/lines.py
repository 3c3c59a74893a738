"""One line of log for each request: who, what came of it, how many tokens, how long.

    text    POST /v1/chat/completions 200 stop id=chatcmpl-1f client=alice total_ms=81.2 ..
    json    {"time": "..", "level": "info", "event": "request", "id": "chatcmpl-1f", ..}

Nothing of what was asked or answered stands in a line. Who gave a name of his own (`user`) is
told by a digest, as keys and salts are.
"""

from __future__ import annotations

import json
import logging
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from typing import Any

from mmserve.core import LogFormat
from mmserve.server.clients import digest
from mmserve.server.visit import STAGES, Visit

__all__ = ["log_to_stderr", "log_visit", "visit_fields"]

_log = logging.getLogger(__name__)
_ROOT = "mmserve"
_QUIET = frozenset({"/health", "/livez", "/metrics"})
_FAILED_FROM = 500
_MAX_WAITING = 10_000


def log_visit(visit: Visit, ended_s: float) -> None:
    """Log a visit that has ended; probes that went well only for debugging."""
    is_failure = (visit.status or 0) >= _FAILED_FROM
    level = logging.INFO
    if is_failure:
        level = logging.WARNING
    elif visit.route in _QUIET:
        level = logging.DEBUG
    if _log.isEnabledFor(level):
        fields = visit_fields(visit, ended_s)
        _log.log(level, "%s", _line(fields), extra={"request": fields})


def visit_fields(visit: Visit, ended_s: float) -> dict[str, Any]:
    """What a line tells, by name; times in milliseconds. Pure."""
    fields: dict[str, Any] = {
        "id": visit.shown_id,
        "client": _client(visit),
        "method": visit.method,
        "route": visit.route,
        "status": visit.status,
        "reason": visit.reason(),
        "total_ms": _ms(ended_s - visit.started_s),
    }
    if not visit.calls:
        return fields
    tokens = visit.tokens()
    fields |= {f"{kind}_tokens": tokens[kind] for kind in ("prompt", "cached", "completion")}
    if visit.first_token_s is not None:
        fields["first_token_ms"] = _ms(visit.first_token_s - visit.started_s)
    timings = [one.timing for call in visit.calls for one in call.sequences if one.timing]
    spent = {stage: max((getattr(t, stage) for t in timings), default=0) for stage in STAGES}
    return fields | {f"{stage}_ms": round(ms, 3) for stage, ms in spent.items() if ms}


@contextmanager
def log_to_stderr(log_format: LogFormat) -> Iterator[None]:
    """Write the house's log to stderr while this is open, by a thread of its own.

    Changes: the handlers and the level of the logger `mmserve`.
    """
    if log_format == "off":
        yield
        return
    stream = logging.StreamHandler()
    stream.setFormatter(_Json() if log_format == "json" else _Text())
    waiting: queue.Queue[Any] = queue.Queue(_MAX_WAITING)
    handler, listener = _Dropping(waiting), QueueListener(waiting, stream)
    logger = logging.getLogger(_ROOT)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(min(logger.getEffectiveLevel(), logging.INFO))
    listener.start()
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        listener.stop()


class _Dropping(QueueHandler):
    """Hands records to the thread that writes; what it cannot keep up with is dropped."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # written in this process, so nothing needs to be made text early

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            return  # a pipe that nobody reads must not stop answers


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"{_time(record)} {record.levelname.lower()} {record.getMessage()}"


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {"time": _time(record), "level": record.levelname.lower()}
        request = getattr(record, "request", None)
        if request is None:
            told = {"event": "log", "logger": record.name, "message": record.getMessage()}
        else:
            told = {"event": "request", **request}
        return json.dumps(fields | told, ensure_ascii=True)


def _client(visit: Visit) -> str:
    """Owners of keys by the name that the operator gave them, all others by a digest."""
    client = visit.client
    if not client or client in visit.caller.names or client.startswith(("key:", "salt:")):
        return client
    return f"user:{digest(b'user', client.encode())}"


def _line(fields: dict[str, Any]) -> str:
    head = " ".join(str(fields[name]) for name in ("method", "route", "status", "reason"))
    rest = {k: v for k, v in fields.items() if k not in ("method", "route", "status", "reason")}
    return " ".join([head, *(f"{name}={value}" for name, value in rest.items())])


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def _time(record: logging.LogRecord) -> str:
    when = datetime.fromtimestamp(record.created, tz=UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
