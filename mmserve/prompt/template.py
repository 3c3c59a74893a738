"""A model's own chat template: where it is kept, and how it is run safely."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mmserve.core import BadRequest
from mmserve.prompt.tokenizer import Tokenizer
from mmserve.prompt.tokenizer_files import read_json

__all__ = ["ChatTemplate", "load_chat_template"]


class _GenerationTag(Extension):
    """`{% generation %}` marks text to train on; here its body is simply written."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as a plain class attribute

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(
    value: Any,  # noqa: ANN401 - whatever a template holds
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - templates call it by position
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    extras: dict[str, Callable[..., Any]] = {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
    }
    environment.globals.update(extras)
    environment.filters["tojson"] = _to_json
    return environment


class ChatTemplate:
    """A compiled Jinja template in a sandbox that cannot change what it is given.

    Args:
        source: the Jinja text.
        special_tokens: variables like `bos_token` that the template may write.

    Raises:
        BadRequest: the source is not a template.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        self.source = source
        self.special_tokens = dict(special_tokens or {})
        try:
            self._compiled = _environment().from_string(source)
        except TemplateError as error:
            raise BadRequest(
                f"the chat template is not valid: {error}",
                field="chat_template",
                reason="syntax",
            ) from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """Text of a conversation; `tools` are definitions in the form of the chat API.

        Raises:
            BadRequest: the template refuses the messages (roles out of order, say).

        Pure.
        """
        try:
            return self._compiled.render(
                messages=list(messages),
                add_generation_prompt=add_generation_prompt,
                tools=list(tools) if tools else None,
                documents=None,
                **self.special_tokens,
            )
        except Exception as error:  # noqa: BLE001 - a template may fail in any way
            raise BadRequest(
                f"the model's chat template refuses this conversation: {str(error)[:200]}",
                field="messages",
                reason="template",
            ) from None


def load_chat_template(path: Path, tokenizer: Tokenizer) -> ChatTemplate | None:
    """The template beside a model's tokenizer, or the one in its file; None if there is none.

    Read in this order: `chat_template.jinja`, `chat_template.json`, `processor_config.json`,
    `tokenizer_config.json`, the vocabulary file's own.
    """
    jinja_file = path / "chat_template.jinja"
    source = jinja_file.read_text(encoding="utf-8") if jinja_file.is_file() else None
    for name in ("chat_template.json", "processor_config.json", "tokenizer_config.json"):
        source = source or _default_of(read_json(path / name).get("chat_template"))
    source = source or tokenizer.chat_template
    return ChatTemplate(source, tokenizer.special_tokens) if source else None


def _default_of(value: Any) -> str | None:  # noqa: ANN401 - parsed JSON
    """The template itself, or the one named "default" in a list or a mapping of several."""
    if isinstance(value, list):
        value = {entry["name"]: entry["template"] for entry in value}
    if isinstance(value, Mapping):
        value = value.get("default")
    return value if isinstance(value, str) else None
