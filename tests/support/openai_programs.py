"""Programs that ask the OpenAI backend, and what its APIs send."""

from __future__ import annotations

import mmserve as sgl

__all__ = ["SCHEMA", "TEMPLATE", "P", "Q", "asking", "chunk", "run"]

P = b"\x89PNG first"
Q = b"\x89PNG second"
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def chunk(text: str, reason: str | None = None, index: int = 0) -> dict[str, object]:
    """A piece of a chat answer."""
    choice = {"index": index, "delta": {"content": text}, "finish_reason": reason}
    return {"id": "c", "object": "chat.completion.chunk", "choices": [choice]}


def run(backend, body, **values):
    """Run a body."""
    return sgl.function(body).run(backend=backend, **values)


def asking(text="Q", **options):
    """A body with one question and one answer."""

    def body(s):
        s += sgl.user(text) + sgl.assistant(sgl.gen("x", **options))

    return body
