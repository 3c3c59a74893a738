"""Requests as one prompt text, for models that complete text.

outside turns   "Once " + "upon"          ->  Once upon                 as it stands
turns           user "Q", assistant open  ->  <|user|>Q<|assistant|>    by the given template
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from mmserve.core import (
    BadRequest,
    Part,
    RawPart,
    TextPart,
    Turn,
    UnsupportedByBackend,
    template_text,
)

if TYPE_CHECKING:
    from mmserve.prompt import ChatTemplate

__all__ = ["PromptWriter"]


@dataclass(frozen=True, slots=True)
class PromptWriter:
    """Writes prompts of one backend; `template` renders turns, None refuses them."""

    backend: str
    template: ChatTemplate | None = None

    @classmethod
    def of(cls, backend: str, template: str | Path | None) -> PromptWriter:
        """With a Jinja template or a file that holds one.

        Raises BadRequest if it is not valid. Reads the file.
        """
        if template is None:
            return cls(backend)
        from mmserve.prompt import ChatTemplate  # noqa: PLC0415  slow to import

        return cls(backend, ChatTemplate(template_text(template), {}))

    def text(self, parts: Sequence[Part]) -> str:
        """The prompt. The last turn is without its end if it is open.

        Raises UnsupportedByBackend for media, and for turns without a template; BadRequest if
        the template refuses the turns. Pure.
        """
        pieces = []
        for is_turn, group in groupby(parts, key=lambda part: isinstance(part, Turn)):
            if is_turn:
                pieces.append(self._turns([part for part in group if isinstance(part, Turn)]))
            else:
                pieces.append(self._plain(tuple(group)))
        return "".join(pieces)

    def _plain(self, parts: Sequence[Part]) -> str:
        texts = [part.text for part in parts if isinstance(part, TextPart | RawPart)]
        if len(texts) < len(parts):
            raise self._refused("image", "pictures, clips or token ids")
        return "".join(texts)

    def _turns(self, turns: Sequence[Turn]) -> str:
        if self.template is None:
            raise self._refused("chat_template", "turns", "give the backend a chat_template")
        messages = [{"role": turn.role, "content": self._plain(turn.parts)} for turn in turns]
        last = messages[-1]["content"]
        if not turns[-1].is_open:
            return self.template.render(messages)
        if turns[-1].role != "assistant":
            return self._cut(messages, last)
        before = self.template.render(messages[:-1], add_generation_prompt=True)
        if not last:
            return before
        # The template may put more before an answer's text than it prompts with (a blank, say).
        bare = self._cut(messages, "")
        if not bare.startswith(before) or last.startswith(bare.removeprefix(before)):
            return before + last
        return self._cut(messages, last)

    def _cut(self, messages: Sequence[dict[str, str]], content: str) -> str:
        """The conversation up to `content` of its last turn."""
        mark = os.urandom(16).hex()
        last = {**messages[-1], "content": content + mark}
        assert self.template is not None  # noqa: S101  the caller has checked
        before, found, _ = self.template.render([*messages[:-1], last]).rpartition(mark)
        if not found:
            message = f"the chat template does not write the content of a {last['role']} turn"
            raise BadRequest(message, field="chat_template", reason="template")
        return before

    def _refused(
        self, parameter: str, what: str, hint: str = "use Engine or RuntimeEndpoint"
    ) -> UnsupportedByBackend:
        message = f"{self.backend} cannot serve {what}"
        return UnsupportedByBackend(
            message, parameter=parameter, backend=self.backend, hint=hint
        )
