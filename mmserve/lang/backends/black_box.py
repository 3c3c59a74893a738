"""What all backends of black-box APIs have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

from mmserve.core import ImagePart, Output, Request, UnsupportedByBackend, VideoPart
from mmserve.lang.backends.abilities import Abilities
from mmserve.lang.backends.api_call import ApiCall
from mmserve.lang.backends.openai_stream import TokenUsage
from mmserve.lang.backends.port import Call, Scores

__all__ = ["BlackBox"]


class BlackBox(ABC):
    """A model behind an API that keeps no prefixes for us and takes no hints.

    Args:
        model_name: as the API names it.
        abilities: what the API takes.

    A backend says in `outputs_of_call` how a request is answered. `token_usage` adds up what
    the API counted.
    """

    def __init__(self, model_name: str, abilities: Abilities) -> None:
        self._model = model_name
        self._abilities = abilities
        self.token_usage = TokenUsage()

    @property
    def name(self) -> str:
        """The class and the model."""
        return f"{type(self).__name__}({self._model})"

    @property
    def abilities(self) -> Abilities:
        """What the API takes."""
        return self._abilities

    @abstractmethod
    def outputs_of_call(self, call: ApiCall, request: Request) -> Iterator[Output]:
        """The answer, produced in the thread of `call`. Raises what the package raises."""
        ...

    def start(self, request: Request) -> ApiCall:
        """Send it in a thread of its own. Does not wait for the API."""
        return ApiCall(lambda call: self.outputs_of_call(call, request), self.name)

    def score(
        self, request: Request, options: Sequence[str], hold: Callable[[Call], None]
    ) -> Scores:
        """Raises UnsupportedByBackend: the API tells no log-probabilities of a prompt."""
        del request, options, hold
        raise self.refused("select", "a select")

    def prepare(self, part: ImagePart | VideoPart, cache_salt: str) -> None:
        """Nothing: an API takes no hints."""
        del part, cache_salt

    def flush_cache(self) -> bool:
        """True; what an API caches is its own affair."""
        return True

    def close(self) -> None:
        """Close what the backend has opened, if anything. Changes: calls under way fail."""
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def refused(
        self, parameter: str, what: str, hint: str = "use Engine or RuntimeEndpoint"
    ) -> UnsupportedByBackend:
        """The error for something that the API cannot do. Pure."""
        message = f"{self.name} cannot serve {what}"
        return UnsupportedByBackend(message, parameter=parameter, backend=self.name, hint=hint)
