"""Instructor over the openai client: `python with_instructor.py URL TEST OPTIONS`.

Schemas are closed: a weak model would fill an open one with fields of its own without end.
"""

from __future__ import annotations

from typing import Any, Literal

import instructor
import openai
from asked import MODEL, call, picture, questions, same
from pydantic import BaseModel, ConfigDict

_ENFORCED = ("TOOLS", "JSON_SCHEMA")


class Said(BaseModel):
    """The answer."""

    model_config = ConfigDict(extra="forbid")

    answer: Literal["yes", "no"]


class Thing(BaseModel):
    """One thing on the table."""

    model_config = ConfigDict(extra="forbid")

    colour: Literal["red", "blue", "green"]
    shape: Literal["circle", "square", "star"]


def _client(url: str, mode: str) -> Any:  # noqa: ANN401 - the client's own wrapper
    plain = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
    return instructor.from_openai(plain, mode=getattr(instructor.Mode, mode))


def _asked(question: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401
    content = [
        {"type": "text", "text": question},
        {"type": "image_url", "image_url": {"url": picture()}},
    ]
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": 64,
        "max_retries": 0,
        **fields,
    }


def enforced(url: str) -> None:
    """A model of pydantic by a tool and by a schema, which the server enforces."""
    for mode in _ENFORCED:
        asked = _asked("Is there a circle?", response_model=Said)
        found = _client(url, mode).chat.completions.create(**asked)
        same(isinstance(found, Said), True)  # noqa: FBT003


def own_picture(url: str) -> None:
    """Its own object for a picture inside of a message."""
    client = _client(url, "JSON_SCHEMA")
    shown = instructor.Image.autodetect(picture())
    asked = _asked("", response_model=Said)
    asked["messages"] = [{"role": "user", "content": ["Is there a circle?", shown]}]
    same(isinstance(client.chat.completions.create(**asked), Said), True)  # noqa: FBT003


def partial(url: str) -> None:
    """A streamed answer grows into the whole one."""
    asked = _asked("Is there a circle?", response_model=Said)
    for mode in _ENFORCED:
        last = list(_client(url, mode).chat.completions.create_partial(**asked))[-1]
        same(last.answer in ("yes", "no"), True)  # noqa: FBT003


def several(url: str) -> None:
    """A list of things, one after the other, out of a stream."""
    asked = _asked("Which things are there?", response_model=Thing, max_tokens=200)
    found = list(_client(url, "TOOLS").chat.completions.create_iterable(**asked))
    same(all(isinstance(thing, Thing) for thing in found), True)  # noqa: FBT003


def raw(url: str) -> None:
    """The completion beside the model, with its usage."""
    asked = _asked("Is there a circle?", response_model=Said)
    _, completion = _client(url, "TOOLS").chat.completions.create_with_completion(**asked)
    same(completion.usage.total_tokens > 0, True)  # noqa: FBT003


def plain(url: str) -> None:
    """Without a model of pydantic, the answer as it is."""
    client = _client(url, "TOOLS")
    for one in questions():
        found = client.chat.completions.create(**_asked(one["question"], response_model=None))
        same(found.choices[0].message.content, one["answer"])


call(
    {
        "enforced": enforced,
        "own_picture": own_picture,
        "partial": partial,
        "several": several,
        "raw": raw,
        "plain": plain,
    }
)
