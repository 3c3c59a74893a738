"""FlashInfer's wrappers, lent out so that the host may plan a step while others run.

A wrapper keeps its schedule in page-locked memory and copies it to the device without waiting;
until that copy has run, the memory may not be written again. So a wrapper is planned again only
when the event behind its last copy has passed, and a new one is made where none is free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

__all__ = ["Call", "Event", "Kind", "Pool", "kind_of"]

Kind = Literal["decode", "wide-decode", "prefill"]
_WORKSPACE_BYTES = 128 << 20
"""For partial results; FlashInfer's documentation recommends as much."""
_WIDE_GROUP = 4
"""Query heads of a key head from which tensor cores pay in decode."""


class Event(Protocol):
    """As `torch.cuda.Event`."""

    def query(self) -> bool:
        """Whether everything before it has run."""
        ...


@dataclass(slots=True, eq=False)
class Call:
    """A wrapper on loan. `kind` says which of FlashInfer's classes it is of."""

    kind: Kind
    wrapper: Any
    copied: Event | None = field(default=None)


class Pool:
    """Wrappers of one device, which share one workspace since they run one after another.

    Args:
        library: the module `flashinfer`.
        device: where they compute.
        new_event: gives an event recorded on the current stream.
    """

    def __init__(
        self,
        library: Any,  # noqa: ANN401 - a module
        device: torch.device,
        new_event: Callable[[], Event],
    ) -> None:
        self._library = library
        self._device = device
        self._new_event = new_event
        self._workspace: Tensor | None = None
        self._free: dict[Kind, list[Call]] = {"decode": [], "wide-decode": [], "prefill": []}

    def lend(self, kind: Kind) -> Call:
        """A wrapper that may be planned now. Changes: the pool."""
        waiting = self._free[kind]
        for place, call in enumerate(waiting):
            if call.copied is None or call.copied.query():
                return waiting.pop(place)
        return Call(kind, self._new(kind))

    def planned(self, call: Call) -> None:
        """Say that `call` has been planned on the current stream. Changes: the call."""
        call.copied = self._new_event()

    def give_back(self, calls: list[Call]) -> None:
        """Take wrappers back whose plan is not needed any more. Changes: the pool."""
        for call in calls:
            self._free[call.kind].append(call)

    def _new(self, kind: Kind) -> Any:  # noqa: ANN401 - of FlashInfer
        if self._workspace is None:
            self._workspace = torch.zeros(
                _WORKSPACE_BYTES, dtype=torch.uint8, device=self._device
            )
        if kind == "prefill":  # fa2 runs on every card and takes pages of one token
            return self._library.BatchPrefillWithPagedKVCacheWrapper(
                self._workspace, "NHD", backend="fa2"
            )
        return self._library.BatchDecodeWithPagedKVCacheWrapper(
            self._workspace,
            "NHD",
            use_tensor_cores=kind == "wide-decode",
            backend="fa2",
        )


def kind_of(*, is_decode: bool, group: int) -> Kind:
    """The wrapper for requests of one query each or more, `group` heads a key head. Pure."""
    if not is_decode:
        return "prefill"
    return "wide-decode" if group >= _WIDE_GROUP else "decode"
