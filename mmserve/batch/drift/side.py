"""One side of a comparison: an OpenAI-compatible endpoint, asked the same way every time."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from mmserve.batch.drift.asks import Ask
from mmserve.batch.drift.said import Said, read_answer
from mmserve.batch.remote import called, check
from mmserve.core import BackendFailed, Busy, MmserveError, RequestRefused

if TYPE_CHECKING:
    import httpx

__all__ = ["ChatSide", "Manner"]

_CONNECT_S = 10.0
_ANSWER_S = 600.0
_MAX_TRIES = 10
_MAX_WAIT_S = 5.0
_LOGPROBS = {"logprobs": True, "top_logprobs": 5}
_FORM_ERRORS = (ValueError, TypeError, KeyError, AttributeError, IndexError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How a side is asked; as it stands, greedily and with nothing added.

    Args:
        temperature: 0 is greedy.
        seed: None sends none.
        system: a system message put before each conversation; None adds none.
        max_tokens: of rows that are silent.
    """

    temperature: float = 0.0
    seed: int | None = None
    system: str | None = None
    max_tokens: int = 128


class ChatSide:
    """An endpoint that is asked from several threads; close it, or use it in a `with`.

    Args:
        url: of the server, with or without `/v1` at its end.
        api_key: sent as a bearer token.
        model: None takes the first that the endpoint lists.
        manner: how it is asked.

    Log-probabilities are asked for until the endpoint refuses a call with them and takes the
    same call without; from then on they are not.

    Raises BackendFailed if nobody is there, or no model is named and none is listed.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        model: str | None = None,
        manner: Manner = Manner(),
    ) -> None:
        import httpx  # noqa: PLC0415 - takes 0.1 s, and other commands do without

        self._url = url.rstrip("/").removesuffix("/v1")
        self._manner = manner
        self._http = httpx.Client(
            base_url=self._url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(_ANSWER_S, connect=_CONNECT_S),
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
        )
        self._errors: tuple[type[Exception], ...] = (httpx.HTTPError, httpx.InvalidURL)
        self._lock = threading.Lock()
        self._tells_logprobs = True
        try:
            self._model = model or self._first_model()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._http.close()

    @property
    def model(self) -> str:
        """The model that is asked. Pure."""
        return self._model

    def ask(self, ask: Ask) -> Said:
        """The answer to one prompt; whatever goes wrong is an error in it. Safe in threads."""
        try:
            return self._answer(self._body(ask))
        except MmserveError as error:
            return Said.failed(error)

    def _body(self, ask: Ask) -> dict[str, Any]:
        manner = self._manner
        body = ask.body(manner.max_tokens)
        if manner.system is not None:
            body["messages"] = [
                {"role": "system", "content": manner.system},
                *body["messages"],
            ]
        body |= {"model": self._model, "temperature": manner.temperature}
        return body if manner.seed is None else body | {"seed": manner.seed}

    def _answer(self, body: dict[str, Any]) -> Said:
        if not self._tells_logprobs:
            return self._post(body)
        try:
            return self._post(body | _LOGPROBS)
        except (RequestRefused, BackendFailed) as error:
            if isinstance(error, BackendFailed) and error.fields.get("status") is None:
                raise  # nobody answered: that says nothing of log-probabilities
            refusal = error
        try:
            said = self._post(body)
        except MmserveError:
            raise refusal from None
        with self._lock:
            self._tells_logprobs = False
        return said

    def _post(self, body: dict[str, Any]) -> Said:
        """One call; tried again while the endpoint is busy."""
        for tries_left in reversed(range(_MAX_TRIES)):
            response = called(
                self._url,
                self._errors,
                lambda: self._http.post("/v1/chat/completions", json=body),
            )
            try:
                return self._read(response)
            except Busy as error:
                if not tries_left:
                    raise
                _wait(error)
        raise AssertionError("unreachable: the last try returns")

    def _read(self, response: httpx.Response) -> Said:
        check(response)
        try:
            return read_answer(response.json())
        except _FORM_ERRORS as error:
            message = f"{self._url} answered in another form: {type(error).__name__}"
            raise BackendFailed(message, status=None) from error

    def _first_model(self) -> str:
        response = called(
            self._url, self._errors, lambda: self._http.get("/v1/models", timeout=_CONNECT_S)
        )
        check(response)
        try:
            return str(response.json()["data"][0]["id"])
        except _FORM_ERRORS as error:
            message = f"{self._url} lists no model"
            hint = "name it: url=...,model=NAME"
            raise BackendFailed(message, hint=hint, status=response.status_code) from error


def _wait(error: Busy) -> None:
    asked_s = error.fields.get("retry_after_s")
    time.sleep(min(asked_s, _MAX_WAIT_S) if isinstance(asked_s, int | float) else _MAX_WAIT_S)
