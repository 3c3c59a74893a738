"""Token ids of an OpenAI-compatible server's model: from the server, else from `tiktoken`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from mmserve.core import MmserveError, UnsupportedByBackend
from mmserve.lang.backends.api_call import api_errors

__all__ = ["Tokens"]

_MOST_TEXTS = 4096


class Tokens:
    """Looks up first tokens, and remembers them. Safe from any thread.

    Args:
        api: a client of the `openai` package.
        model: the model's name.
        backend: the backend's name, for messages.
    """

    def __init__(self, api: Any, model: str, backend: str) -> None:  # noqa: ANN401  another's
        self._api = api
        self._model = model
        self._backend = backend
        self._lock = threading.Lock()
        self._encode: Callable[[str], list[int]] | None = None
        self._first: dict[str, int] = {}

    def first_of(self, text: str) -> int:
        """Id of the first token of `text`.

        Raises UnsupportedByBackend if neither the server nor `tiktoken` knows the tokens.
        Changes: what is remembered.
        """
        with self._lock:
            if text not in self._first:
                if self._encode is None:
                    self._encode = self._found(text)
                if len(self._first) >= _MOST_TEXTS:
                    self._first.clear()
                self._first[text] = self._encode(text)[0]
            return self._first[text]

    def _found(self, text: str) -> Callable[[str], list[int]]:
        """The first way that works for `text`."""
        for encode in (self._by_route, self._by_package()):
            if encode is None:
                continue
            try:
                encode(text)
            except (MmserveError, KeyError, TypeError, IndexError):
                continue
            return encode
        raise UnsupportedByBackend(
            f"{self._backend} cannot serve a select: its token ids are not known",
            parameter="select",
            backend=self._backend,
            hint="use a server with a /tokenize route, or install tiktoken for its models",
        )

    def _by_route(self, text: str) -> list[int]:
        body = {"model": self._model, "prompt": text, "add_special_tokens": False}
        with api_errors(self._backend):
            reply = self._api.post("/tokenize", body=body, cast_to=object)
        return list(map(int, reply["tokens"]))

    def _by_package(self) -> Callable[[str], list[int]] | None:
        try:
            import tiktoken  # noqa: PLC0415  not installed by us

            return tiktoken.encoding_for_model(self._model).encode_ordinary
        except Exception:  # noqa: BLE001  not installed, unknown model, or no network
            return None
