"""Event streams of `/generate`, and the scores in its replies."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mmserve.core import BackendFailed, TokenLogprob
from mmserve.core.wire import error_from
from mmserve.lang.backends.port import OptionScore

__all__ = ["choice_scores", "events"]


def events(lines: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """The objects of an event stream, until its last line.

    Raises the error an event reports, and BackendFailed if the stream breaks off or is no JSON.
    """
    for line in lines:
        if not line.startswith("data:"):
            continue
        payload = line[len("data:") :].strip()
        if payload == "[DONE]":
            return
        try:
            event = json.loads(payload)
        except ValueError as error:
            message = "the server sent an event that is no JSON"
            raise BackendFailed(message, status=None) from error
        if "error" in event:
            raise error_from(None, event)
        yield event
    message = "the server ended a stream early"
    raise BackendFailed(message, status=None)


def choice_scores(meta: Mapping[str, Any], num_options: int) -> tuple[OptionScore, ...]:
    """Scores that the reply to a call with `choices` tells. Raises BackendFailed. Pure."""
    try:
        scores = tuple(
            OptionScore(
                tuple(
                    TokenLogprob(int(token_id), float(number), b"")
                    for token_id, number in zip(
                        option["token_ids"], option["logprobs"], strict=True
                    )
                )
            )
            for option in meta["choices"]
        )
    except (KeyError, TypeError, ValueError) as error:
        message = f"the server's scores are malformed: {type(error).__name__} {error}"
        raise BackendFailed(message, status=None) from error
    if len(scores) != num_options or not all(score.tokens for score in scores):
        message = "the server did not score every option"
        raise BackendFailed(message, status=None)
    return scores
