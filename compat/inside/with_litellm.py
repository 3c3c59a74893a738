"""LiteLLM: `python with_litellm.py URL TEST OPTIONS`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import litellm
from asked import MODEL, call, picture, questions, same

_PROVIDERS = ("openai", "hosted_vllm")
_SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string", "enum": ["yes", "no"]}},
    "required": ["answer"],
    "additionalProperties": False,
}
_TOOL = {
    "type": "function",
    "function": {
        "name": "tell",
        "description": "Tells the answer.",
        "parameters": _SCHEMA,
    },
}


def _asked(url: str, question: str, provider: str = "openai", **fields: Any) -> dict[str, Any]:  # noqa: ANN401
    content = [
        {"type": "text", "text": question},
        {"type": "image_url", "image_url": {"url": picture()}},
    ]
    return {
        "model": f"{provider}/{MODEL}",
        "api_base": f"{url}/v1",
        "api_key": "any",
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": 32,
        "num_retries": 0,
        **fields,
    }


def pictures(url: str) -> None:
    """Right answers about a picture through both of its providers, usage included."""
    for provider in _PROVIDERS:
        for one in questions():
            answer = litellm.completion(**_asked(url, one["question"], provider))
            same(answer.choices[0].message.content, one["answer"])
            same(answer.usage.prompt_tokens_details.image_tokens > 0, True)  # noqa: FBT003


def stream(url: str) -> None:
    """Pieces join to the answer, and the last chunk has the usage."""
    one = questions()[0]
    options = {"include_usage": True}
    asked = _asked(url, one["question"], stream=True, stream_options=options)
    chunks = list(litellm.completion(**asked))
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    same("".join(pieces), one["answer"])
    same(chunks[-1].usage.completion_tokens > 0, True)  # noqa: FBT003


def at_once(url: str) -> None:
    """All questions at once from one event loop."""

    async def ask_all() -> list[str]:
        calls = [litellm.acompletion(**_asked(url, one["question"])) for one in questions()]
        return [answer.choices[0].message.content for answer in await asyncio.gather(*calls)]

    same(asyncio.run(ask_all()), [one["answer"] for one in questions()])


def schema(url: str) -> None:
    """A schema by `response_format` is kept."""
    shaped = {
        "type": "json_schema",
        "json_schema": {"name": "said", "schema": _SCHEMA, "strict": True},
    }
    answer = litellm.completion(**_asked(url, "Is there a circle?", response_format=shaped))
    same(json.loads(answer.choices[0].message.content)["answer"] in ("yes", "no"), True)  # noqa: FBT003


def tools(url: str) -> None:
    """A tool that must be called is called with arguments of its schema."""
    choice = {"type": "function", "function": {"name": "tell"}}
    asked = _asked(url, "Is there a circle?", tools=[_TOOL], tool_choice=choice)
    (called,) = litellm.completion(**asked).choices[0].message.tool_calls
    same(called.function.name, "tell")
    same(json.loads(called.function.arguments)["answer"] in ("yes", "no"), True)  # noqa: FBT003


def logprobs(url: str) -> None:
    """A token's log-probabilities arrive."""
    asked = _asked(url, questions()[0]["question"], logprobs=True, top_logprobs=2)
    content = litellm.completion(**asked).choices[0].logprobs.content
    same([len(entry.top_logprobs) for entry in content], [2] * len(content))


def refusals(url: str) -> None:
    """Its own error classes come of our statuses."""
    try:
        litellm.completion(**_asked(url, "What?", temperature=-1))
    except litellm.BadRequestError as error:
        same("temperature" in str(error), True)  # noqa: FBT003
    else:
        raise AssertionError
    try:
        litellm.completion(**_asked(url, "What?") | {"model": "openai/other"})
    except litellm.NotFoundError:
        return
    raise AssertionError


call(
    {
        "pictures": pictures,
        "stream": stream,
        "at_once": at_once,
        "schema": schema,
        "tools": tools,
        "logprobs": logprobs,
        "refusals": refusals,
    }
)
