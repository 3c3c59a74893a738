"""OpenAI's APIs, and every server that speaks them, through the official client package."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mmserve.core import (
    BadRequest,
    MissingExtra,
    Output,
    Request,
)
from mmserve.lang.backends.api_call import ApiCall
from mmserve.lang.backends.biased_choice import choose_by_bias
from mmserve.lang.backends.black_box import BlackBox
from mmserve.lang.backends.completion_prompt import PromptWriter
from mmserve.lang.backends.openai_body import Form, abilities_of, checked_extensions
from mmserve.lang.backends.openai_stream import outputs_of
from mmserve.lang.backends.openai_tokens import Tokens
from mmserve.lang.backends.port import Call, Scores
from mmserve.lang.backends.scoring import whole_output
from mmserve.lang.backends.typed_answers import typed_answers

__all__ = ["OpenAI"]

_COMPLETION_ONLY = ("gpt-3.5-turbo-instruct", "davinci-002", "babbage-002")
_RETRIES = 2


class OpenAI(BlackBox):
    """Answers by the chat API or the completions API of OpenAI or a compatible server.

    Args:
        model_name: the model, as the server names it.
        is_chat_model: False asks the completions API; None decides by the names of OpenAI's
            own completion models, which are few.
        chat_template: how turns become text for the completions API: Jinja, or a file of it.
        is_azure: whether `client` describes an Azure resource.
        extensions: parameters that the server takes beyond OpenAI's, such as "regex"; sent
            under the names that a server of ours has for them.
        frames: send clips as pictures of their frames, sampled here.
        **client: goes to the package's client: `api_key`, `base_url`, `timeout`, `max_retries`.

    Raises MissingExtra without the `openai` package, BadRequest for unknown extensions and
    client settings without meaning, UnsupportedByBackend for a template that would not be used.
    Does not connect before the first call.

    `token_usage` adds up what the API counted.
    """

    def __init__(
        self,
        model_name: str,
        is_chat_model: bool | None = None,  # noqa: FBT001  the language's parameter order
        chat_template: str | Path | None = None,
        is_azure: bool = False,  # noqa: FBT001, FBT002  the language's parameter order
        *,
        extensions: Sequence[str] = (),
        frames: bool = False,
        **client: Any,  # noqa: ANN401  typed by the package
    ) -> None:
        if is_chat_model is None:
            is_chat_model = not model_name.removeprefix("ft:").startswith(_COMPLETION_ONLY)
        taken = checked_extensions(extensions)
        abilities = abilities_of(
            is_chat=is_chat_model,
            has_template=chat_template is not None,
            has_frames=frames,
            extensions=taken,
        )
        super().__init__(model_name, abilities)
        if is_chat_model and chat_template is not None:
            what = "a chat_template, its chat API has its own"
            raise self.refused(
                "chat_template", what, "leave it out, or set is_chat_model=False"
            )
        writer = None if is_chat_model else PromptWriter.of(self.name, chat_template)
        self._form = Form(self.name, model_name, taken, writer)
        self._num_retries = int(client.pop("max_retries", _RETRIES))
        self._api = _client(client, is_azure=is_azure)
        self._tokens = Tokens(self._api, model_name, self.name)

    def score(
        self, request: Request, options: Sequence[str], hold: Callable[[Call], None]
    ) -> Scores:
        """The winner, by a bias on tokens; see `biased_choice`."""

        def ask(asked: Request) -> Output:
            call = self.start(asked)
            hold(call)
            return whole_output(call)

        return choose_by_bias(request, options, ask, self._tokens.first_of)

    def server_info(self) -> dict[str, object]:
        """The model's name and the address."""
        return {"model": self._model, "base_url": str(self._api.base_url)}

    def close(self) -> None:
        """Close the connections. Changes: calls under way fail."""
        self._api.close()

    def outputs_of_call(self, call: ApiCall, request: Request) -> Iterator[Output]:
        """See `BlackBox`."""
        started_s = time.monotonic()
        words = self._form.arguments(request)
        is_chat = self._form.writer is None
        route = self._api.chat.completions if is_chat else self._api.completions
        with call.open(lambda: route.create(**words), self._num_retries) as chunks:
            outputs = outputs_of(chunks, request, self.token_usage, self.name, started_s)
            if self._form.is_typed(request.sampling.constraint):
                outputs = typed_answers(outputs, request.sampling, self.name)
            yield from outputs


def _client(settings: dict[str, Any], *, is_azure: bool) -> Any:  # noqa: ANN401  the package's
    try:
        import openai  # noqa: PLC0415  optional, and slow to import
    except ImportError as error:
        raise MissingExtra(
            "OpenAI needs the package openai",
            hint='pip install "mmserve[openai]"',
            package="openai",
            extra="openai",
        ) from error
    kind = openai.AzureOpenAI if is_azure else openai.OpenAI
    try:
        return kind(**settings, max_retries=0)  # a call of ours tries again by itself
    except openai.OpenAIError as error:
        message = f"the client cannot be made: {error}"
        raise BadRequest(message, field="client", reason="settings") from error
