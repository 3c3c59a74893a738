"""LangChain's ChatOpenAI: `python with_langchain.py URL TEST OPTIONS`.

Schemas are strict: a weak model would fill an open one with fields of its own without end.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import openai
from asked import MODEL, call, picture, questions, same
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Said(BaseModel):
    """The answer."""

    answer: Literal["yes", "no"]


@tool
def count(shape: Literal["circle", "square", "star"]) -> int:
    """Counts the shapes of a kind."""
    return len(shape)


def _chat(url: str, **fields: Any) -> ChatOpenAI:  # noqa: ANN401
    return ChatOpenAI(
        base_url=f"{url}/v1",
        api_key="any",
        model=MODEL,
        temperature=0,
        max_tokens=32,
        max_retries=0,
        **fields,
    )


def _message(question: str) -> HumanMessage:
    url = {"url": picture()}
    return HumanMessage(
        [{"type": "text", "text": question}, {"type": "image_url", "image_url": url}]
    )


def pictures(url: str) -> None:
    """Right answers, and usage with the picture's tokens."""
    for one in questions():
        answer = _chat(url).invoke([_message(one["question"])])
        same(answer.content, one["answer"])
        same(answer.usage_metadata["input_tokens"] > 0, True)  # noqa: FBT003


def blocks(url: str) -> None:
    """Its own blocks for pictures, with base64 beside a media type."""
    one = questions()[0]
    content = picture().partition(",")[2]
    block = {"type": "image", "base64": content, "mime_type": "image/png"}
    message = HumanMessage([block, {"type": "text", "text": one["question"]}])
    same(_chat(url).invoke([message]).content, one["answer"])


def history(url: str) -> None:
    """A system message, an earlier answer of its own, and a question about the same picture."""
    first, second = questions()[:2]
    chat = _chat(url)
    said = chat.invoke([_message(first["question"])])
    turns = [_message(first["question"]), said, HumanMessage(second["question"])]
    same(bool(chat.invoke(turns).content), True)  # noqa: FBT003
    same(bool(chat.invoke([SystemMessage("Be brief."), *turns]).content), True)  # noqa: FBT003


def stream(url: str) -> None:
    """Pieces join to the answer, the usage comes with them."""
    one = questions()[0]
    pieces = list(_chat(url, stream_usage=True).stream([_message(one["question"])]))
    same("".join(piece.text for piece in pieces), one["answer"])
    same(sum((p.usage_metadata or {}).get("output_tokens", 0) for p in pieces) > 0, True)  # noqa: FBT003


def batch(url: str) -> None:
    """All questions at once, from threads and from an event loop."""
    asked = [[_message(one["question"])] for one in questions()]
    expected = [one["answer"] for one in questions()]
    same([answer.content for answer in _chat(url).batch(asked)], expected)

    async def ask_all() -> list[Any]:
        return await _chat(url).abatch(asked)

    same([answer.content for answer in asyncio.run(ask_all())], expected)


def structured(url: str) -> None:
    """A model of pydantic by schema and by a tool's call."""
    for method in ("json_schema", "function_calling"):
        shaped = _chat(url).with_structured_output(Said, method=method, strict=True)
        found = shaped.invoke([_message("Is there a circle?")])
        same(isinstance(found, Said), True)  # noqa: FBT003


def tools(url: str) -> None:
    """A bound tool is called, and its result may be sent back."""
    chat = _chat(url)
    asked = [_message("How many circles are there?")]
    said = chat.bind_tools([count], tool_choice="count", strict=True).invoke(asked)
    (called,) = said.tool_calls
    result = ToolMessage(str(count.invoke(called["args"])), tool_call_id=called["id"])
    same(isinstance(chat.bind_tools([count]).invoke([*asked, said, result]), AIMessage), True)  # noqa: FBT003


def logprobs(url: str) -> None:
    """A token's log-probabilities arrive."""
    chat = _chat(url, logprobs=True, top_logprobs=2)
    told = chat.invoke([_message(questions()[0]["question"])]).response_metadata["logprobs"]
    same([len(entry["top_logprobs"]) for entry in told["content"]], [2] * len(told["content"]))


def refusals(url: str) -> None:
    """A refusal is the openai client's own error."""
    try:
        _chat(url, top_p=-1.0).invoke("What?")
    except openai.BadRequestError as error:
        same(error.param, "top_p")
    else:
        raise AssertionError


call(
    {
        "pictures": pictures,
        "blocks": blocks,
        "history": history,
        "stream": stream,
        "batch": batch,
        "structured": structured,
        "tools": tools,
        "logprobs": logprobs,
        "refusals": refusals,
    }
)
