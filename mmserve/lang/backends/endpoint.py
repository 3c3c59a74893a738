"""A server of ours over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from mmserve.core import BackendFailed, ImagePart, Request, UnsupportedByBackend, VideoPart
from mmserve.lang.backends.abilities import EVERYTHING, Abilities
from mmserve.lang.backends.early import EarlyMedia
from mmserve.lang.backends.http_call import HttpCall
from mmserve.lang.backends.port import Call, Scores
from mmserve.lang.backends.replies import choice_scores
from mmserve.lang.backends.scoring import whole_output
from mmserve.lang.backends.transport import SILENCE_S, refusal, transport_errors
from mmserve.lang.backends.uploads import Uploads

__all__ = ["RuntimeEndpoint"]

_CONNECT_S = 10.0
_REFUSED = 400


class RuntimeEndpoint:
    """Answers by the native routes of a server.

    Each picture or clip is uploaded once, and named by its id in all calls.

    Args:
        base_url: `http://host:port`.
        api_key: sent as a bearer token.
        verify: False leaves TLS certificates unchecked; a path names a bundle to check with.
        chat_template_name: None; the server uses the model's own template, never a guessed one.

    Raises UnsupportedByBackend for a template name. Does not connect before the first call.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        verify: bool | str | None = None,  # noqa: FBT001  the language's parameter order
        chat_template_name: str | None = None,
    ) -> None:
        if chat_template_name is not None:
            message = f"chat_template_name is {chat_template_name!r}, the server has its own"
            raise UnsupportedByBackend(
                message,
                parameter="chat_template_name",
                backend="RuntimeEndpoint",
                hint="leave it out; start the server with --chat-template",
            )
        import httpx  # noqa: PLC0415  slow to import, and engines in this process do without

        self._base_url = base_url.rstrip("/")
        is_encrypted = not self._base_url.startswith("http:")  # else skips reading certificates
        self._http = httpx.Client(
            base_url=self._base_url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            verify=is_encrypted if verify is None else verify,
            timeout=httpx.Timeout(SILENCE_S, connect=_CONNECT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            trust_env=False,
        )
        self._uploads = Uploads(self._http)
        self._early = EarlyMedia(self._http, self._uploads)

    @property
    def name(self) -> str:
        """The server's address."""
        return self._base_url

    @property
    def abilities(self) -> Abilities:
        """Everything."""
        return EVERYTHING

    def start(self, request: Request) -> HttpCall:
        """Post it in a thread of its own. Does not wait for the server."""
        return HttpCall(self._http, self._uploads, request)

    def prepare(self, part: ImagePart | VideoPart, cache_salt: str) -> None:
        """Tell the server that calls will soon ask about it; see `Backend.prepare`."""
        self._early.tell(part, cache_salt)

    def score(
        self, request: Request, options: Sequence[str], hold: Callable[[Call], None]
    ) -> Scores:
        """Score options by one request with `choices`; see `Backend.score`."""
        call = HttpCall(self._http, self._uploads, request, {"choices": list(options)})
        hold(call)
        end = whole_output(call)
        return Scores(end, choice_scores(call.meta, len(options)))

    def flush_cache(self) -> bool:
        """Forget the server's cached prefixes; False if calls under way forbid it."""
        with transport_errors(self._base_url):
            response = self._http.post("/flush_cache")
        if response.status_code == _REFUSED:
            return False
        if response.status_code > _REFUSED:
            raise refusal(response)
        return True

    def server_info(self) -> dict[str, object]:
        """What the server says about itself."""
        reply: dict[str, object] = self._json("GET", "/server_info", None)
        return reply

    def close(self) -> None:
        """Close the connections. Changes: calls under way fail."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _json(self, method: str, path: str, body: object) -> dict[str, Any]:
        with transport_errors(self._base_url):
            response = self._http.request(method, path, json=body)
        if response.status_code >= _REFUSED:
            raise refusal(response)
        reply = response.json()
        if not isinstance(reply, dict):
            message = f"{path} answered with something else than an object"
            raise BackendFailed(message, status=response.status_code)
        return reply
