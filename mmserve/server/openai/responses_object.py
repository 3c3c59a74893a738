"""The response object, at each point of its life."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmserve.core import Finish
from mmserve.server.answer import now_s
from mmserve.server.drafts import Draft, usage_object
from mmserve.server.errors import error_object

__all__ = ["ResponseForm", "error_event"]


@dataclass(frozen=True, slots=True)
class ResponseForm:
    """What does not change while a response comes to be."""

    id: str
    created_s: int
    model: str
    echo: Mapping[str, Any]
    is_kept: bool

    def begun(self) -> dict[str, Any]:
        """Nothing is said yet. Pure."""
        return self._object("in_progress", [])

    def ended(
        self, draft: Draft, items: Sequence[Mapping[str, Any]], extras: Mapping[str, Any]
    ) -> dict[str, Any]:
        """All is said, or what there was room for; `extras` stand beside what OpenAI tells."""
        finish = draft.finish or Finish("abort")
        usage = _usage(draft)
        if finish.reason == "stop":
            body = self._object("completed", items, usage=usage, completed_at=now_s())
        else:
            reason = "max_output_tokens" if finish.reason == "length" else finish.reason
            details = {"reason": reason}
            body = self._object("incomplete", items, usage=usage, incomplete_details=details)
        return {**body, "matched_stop": finish.matched, **extras}

    def failed(self, error: Exception, items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """It ends with an error, after `items`. Pure."""
        told = error_object(error)["error"]
        is_ours = told["type"] == "server_error"
        short = {
            "code": "server_error" if is_ours else told["code"],
            "message": told["message"],
        }
        return {**self._object("failed", items, error=short), "store": False}

    def _object(
        self, status: str, items: Sequence[Mapping[str, Any]], **fields: object
    ) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_s,
            "status": status,
            "background": False,
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "max_tool_calls": None,
            "model": self.model,
            "output": list(items),
            "reasoning": None,
            "service_tier": "default",
            "store": self.is_kept,
            "truncation": "disabled",
            "usage": None,
            **self.echo,
            **fields,
        }


def error_event(error: Exception) -> dict[str, Any]:
    """An error inside a stream, without its number.

    Its facts stand in the event itself, as that API says, and once more as every other route
    of this server tells an error. Pure.
    """
    told = error_object(error)
    facts = {name: told["error"][name] for name in ("code", "message", "param")}
    return {"type": "error", **facts, **told}


def _usage(draft: Draft) -> dict[str, Any]:
    """The usage of chat by the names of this API."""
    usage = usage_object([draft], 1)
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": usage["prompt_tokens_details"],
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {
            "reasoning_tokens": 0,
            **usage["completion_tokens_details"],
        },
        "total_tokens": usage["total_tokens"],
    }
