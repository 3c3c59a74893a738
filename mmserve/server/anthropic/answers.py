"""An answer as Anthropic's API tells it: content blocks, why it ended, and usage.

news of text -> reader -> deltas of chat -> steps of blocks -> events, or a whole message
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from mmserve.core import Finish, Usage
from mmserve.server.chat.tools_calls import AnswerReader

__all__ = ["BlockWriter", "content_of", "stop_fields", "usage_fields"]

Event = dict[str, Any]


class BlockWriter:
    """Turns what a reader of chat answers finds into events of content blocks. Mutable."""

    def __init__(self) -> None:
        self.has_calls = False
        self._index = -1
        self._is_open = False
        self._is_text = False

    def take(self, deltas: Iterable[dict[str, Any]]) -> Iterator[Event]:
        """Events of these deltas. Changes: the block that is open."""
        for delta in deltas:
            if delta.get("content"):
                if not self._is_text:
                    yield from self._begin({"type": "text", "text": ""})
                yield self._delta({"type": "text_delta", "text": delta["content"]})
            for call in delta.get("tool_calls", ()):
                yield from self._call(call)

    def end(self) -> Iterator[Event]:
        """The end of the open block, if there is one. Changes: none is open."""
        if self._is_open:
            self._is_open = self._is_text = False
            yield {"type": "content_block_stop", "index": self._index}

    def _call(self, call: dict[str, Any]) -> Iterator[Event]:
        function = call["function"]
        if "id" in call:
            self.has_calls = True
            block_id = "toolu_" + call["id"].removeprefix("call_")
            block = {"type": "tool_use", "id": block_id, "name": function["name"], "input": {}}
            yield from self._begin(block)
        if function["arguments"]:
            yield self._delta(
                {"type": "input_json_delta", "partial_json": function["arguments"]}
            )

    def _begin(self, block: Event) -> Iterator[Event]:
        yield from self.end()
        self._index += 1
        self._is_open, self._is_text = True, block["type"] == "text"
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: Event) -> Event:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


def content_of(events: Iterable[Event]) -> list[dict[str, Any]]:
    """The content blocks that these events add up to. Pure.

    The input of a call that was cut off is empty, as it is no JSON.
    """
    blocks: list[dict[str, Any]] = []
    inputs: dict[int, str] = {}
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta":
            delta, index = event["delta"], event["index"]
            if delta["type"] == "text_delta":
                blocks[index]["text"] += delta["text"]
            else:
                inputs[index] = inputs.get(index, "") + delta["partial_json"]
    for index, words in inputs.items():
        blocks[index]["input"] = _object(words)
    return blocks


def stop_fields(
    finish: Finish | None, reader: AnswerReader, *, has_calls: bool
) -> dict[str, Any]:
    """`stop_reason` and `stop_sequence`; an answer that was aborted has paused. Pure."""
    if finish is None:
        return {"stop_reason": None, "stop_sequence": None}
    reason = reader.reason(finish)
    if reason == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if reason == "abort":
        return {"stop_reason": "pause_turn", "stop_sequence": None}
    if reason != "tool_calls" and isinstance(finish.matched, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": finish.matched}
    return {"stop_reason": "tool_use" if has_calls else "end_turn", "stop_sequence": None}


def usage_fields(usage: Usage) -> dict[str, Any]:
    """Tokens read from the cache, and those computed as `input_tokens`. Pure.

    Everything is cached by itself and at no extra cost, so nothing counts as its creation.
    """
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
        "input_tokens_details": {
            "image_tokens": usage.image_tokens,
            "video_tokens": usage.video_tokens,
        },
    }


def _object(words: str) -> dict[str, Any]:
    try:
        value = json.loads(words)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
