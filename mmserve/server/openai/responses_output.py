"""An answer under way as items of the Responses API, and the events that tell of them.

    message          item.added  part.added  text.delta ..  text.done  part.done  item.done
    function call    item.added              arguments.delta ..  arguments.done   item.done

The events lack their number, which counts through the whole stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mmserve.core import Finish, TokenLogprob, ToolCall
from mmserve.server.chat.tools_calls import AnswerReader
from mmserve.server.openai.logprobs import token_entries
from mmserve.server.openai.responses_items import (
    call_item,
    message_item,
    new_id,
    text_part,
)

__all__ = ["OutputWriter"]

Event = dict[str, Any]


class OutputWriter:
    """Reads one answer from its beginning to its end. Mutable; one for each answer.

    `items` are those that have ended.
    """

    def __init__(self, reader: AnswerReader, *, has_logprobs: bool) -> None:
        self.items: list[dict[str, Any]] = []
        self._reader = reader
        self._has_logprobs = has_logprobs
        self._untold: list[dict[str, Any]] = []
        self._open: _OpenMessage | _OpenCall | None = None

    def add(self, text: str, logprobs: Iterable[TokenLogprob]) -> list[Event]:
        """What more text is told as. Changes: the state."""
        if self._has_logprobs:
            self._untold += token_entries(logprobs)
        return self._events(self._reader.add(text))

    def end(self, finish: Finish | None) -> list[Event]:
        """What was held back, and the end of the last item. Changes: the state."""
        events = self._events(self._reader.end())
        if self._open is None and not self._reader.has_calls:
            events += self._begin(_OpenMessage())
        if isinstance(self._open, _OpenMessage) and self._untold:
            events += self._say(self._open, "")
        is_whole = finish is not None and finish.reason == "stop"
        return events + self._close("completed" if is_whole else "incomplete")

    def _events(self, deltas: Iterable[dict[str, Any]]) -> list[Event]:
        events: list[Event] = []
        for delta in deltas:
            if "content" in delta:
                if not isinstance(self._open, _OpenMessage):
                    events += self._begin(_OpenMessage())
                if isinstance(self._open, _OpenMessage) and delta["content"]:
                    events += self._say(self._open, delta["content"])
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    name = call["function"]["name"]
                    events += self._begin(_OpenCall(call["id"], name))
                elif isinstance(self._open, _OpenCall):
                    events.append(self._open.add(call["function"]["arguments"]))
        return events

    def _say(self, message: _OpenMessage, words: str) -> list[Event]:
        logprobs, self._untold = self._untold, []
        return [message.add(words, logprobs)]

    def _begin(self, item: _OpenMessage | _OpenCall) -> list[Event]:
        events = self._close("completed")
        item.place["output_index"] = len(self.items)
        self._open = item
        return events + item.begin()

    def _close(self, status: str) -> list[Event]:
        if self._open is None:
            return []
        events = self._open.end(status)
        self.items.append(events[-1]["item"])
        self._open = None
        return events


class _OpenMessage:
    """A message of one text."""

    def __init__(self) -> None:
        self.place: dict[str, Any] = {"item_id": new_id("msg")}
        self._words: list[str] = []
        self._logprobs: list[dict[str, Any]] = []

    def begin(self) -> list[Event]:
        item = message_item(self.place["item_id"], "in_progress", [])
        return [
            _item_event("added", self.place, item),
            self._event("response.content_part.added", part=text_part("")),
        ]

    def add(self, words: str, logprobs: list[dict[str, Any]]) -> Event:
        self._words.append(words)
        self._logprobs += logprobs
        return self._event("response.output_text.delta", delta=words, logprobs=logprobs)

    def end(self, status: str) -> list[Event]:
        words, logprobs = "".join(self._words), self._logprobs
        part = text_part(words, logprobs)
        item = message_item(self.place["item_id"], status, [part])
        return [
            self._event("response.output_text.done", text=words, logprobs=logprobs),
            self._event("response.content_part.done", part=part),
            _item_event("done", self.place, item),
        ]

    def _event(self, kind: str, **fields: object) -> Event:
        return {"type": kind, **self.place, "content_index": 0, **fields}


class _OpenCall:
    """A call whose arguments come piece by piece."""

    def __init__(self, call_id: str, name: str) -> None:
        self.place: dict[str, Any] = {"item_id": new_id("fc")}
        self._call_id = call_id
        self._name = name
        self._pieces: list[str] = []

    def begin(self) -> list[Event]:
        return [_item_event("added", self.place, self._item("in_progress"))]

    def add(self, piece: str) -> Event:
        self._pieces.append(piece)
        return {"type": "response.function_call_arguments.delta", **self.place, "delta": piece}

    def end(self, status: str) -> list[Event]:
        item = self._item(status)
        done = {"name": self._name, "arguments": item["arguments"]}
        return [
            {"type": "response.function_call_arguments.done", **self.place, **done},
            _item_event("done", self.place, item),
        ]

    def _item(self, status: str) -> dict[str, Any]:
        call = ToolCall(self._call_id, self._name, "".join(self._pieces))
        return call_item(self.place["item_id"], status, call)


def _item_event(what: str, place: dict[str, Any], item: dict[str, Any]) -> Event:
    kind = f"response.output_item.{what}"
    return {"type": kind, "output_index": place["output_index"], "item": item}
