"""What each call means on the engine's side: the `Client` method behind a message."""

from __future__ import annotations

import logging

from mmserve.core import Broken, Client, MmserveError
from mmserve.engine.remote.messages import (
    Call,
    Counters,
    Detokenize,
    Draw,
    Failed,
    FlushCache,
    Look,
    Render,
    Tokenize,
    Told,
    Value,
)

__all__ = ["answer", "as_ours"]

_log = logging.getLogger(__name__)


def answer(client: Client, call: Call) -> Told | Failed:
    """Carry a call out. Never raises. Changes: whatever the call does."""
    try:
        return Told(call.number, _carry_out(client, call))
    except Exception as error:  # noqa: BLE001 - whoever called must hear of it
        return Failed(call.number, as_ours(error))


def as_ours(error: BaseException) -> MmserveError:
    """The error itself if it is one of the house, else Broken; the log has the rest. Pure."""
    if isinstance(error, MmserveError):
        return error
    _log.error("the engine process failed", exc_info=error)
    return Broken(f"the engine failed: {type(error).__name__}")


def _carry_out(client: Client, call: Call) -> Value:
    value: Value
    match call:
        case Look(_, part):
            value = client.look(part)
        case Tokenize(_, text, add_special_tokens):
            value = client.tokenize(text, add_special_tokens=add_special_tokens)
        case Detokenize(_, token_ids, skip_special_tokens):
            value = client.detokenize(token_ids, skip_special_tokens=skip_special_tokens)
        case FlushCache(_, timeout_s):
            value = client.flush_cache(timeout_s)
        case Counters():
            value = client.counters()
        case Render(_, request):
            value = client.render(request)
        case Draw(_, room, form):
            value = client.drawing(room, form)
    return value
