"""What is done earlier or in another order for a compiled program."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence

from mmserve.lang.backends.port import Backend
from mmserve.lang.batch import BatchStyle
from mmserve.lang.compiler.grouping import grouped
from mmserve.lang.compiler.hoist import Hoist
from mmserve.lang.compiler.source import read_source
from mmserve.lang.execution import Execution
from mmserve.lang.expressions import image, video
from mmserve.lang.ir import Picture
from mmserve.lang.parameters import CallOptions
from mmserve.lang.settings import global_config

__all__ = ["Gate", "Plan"]

Gate = Callable[[Execution, float | None], None]
"""Called with a state before each of its calls; may wait as long as the call may take."""

_MAKERS = {"image": image, "video": video}


class Plan:
    """Early media, grouped rows and hoisted prefixes of one program. Immutable.

    Args:
        function: the program's function; its text is read, it is not run.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self._facts = read_source(function)

    def start_early(
        self, backend: Backend, options: CallOptions, arguments: Mapping[str, object]
    ) -> None:
        """Begin to fetch, decode and encode media that the arguments are known to become.

        Returns at once. What goes wrong is left to the append, and so is what can be read once
        or by one thread only: file objects and PIL pictures.
        """
        work = [
            (use.kind, arguments[use.parameter], values)
            for use in self._facts.media
            if use.parameter in arguments
            and _can_be_read_twice(arguments[use.parameter])
            and (values := use.values(arguments)) is not None
        ]
        if not work:
            return

        def prepare() -> None:
            for kind, source, values in work:
                with contextlib.suppress(Exception):  # it is raised again at the append
                    for node in _MAKERS[kind](source, **values).nodes:  # type: ignore[operator]
                        if isinstance(node, Picture):
                            backend.prepare(node.load(), options.cache_salt)

        threading.Thread(target=prepare, name="mmserve-early", daemon=True).start()

    def order(
        self, arguments: Sequence[Mapping[str, object]], style: BatchStyle
    ) -> Sequence[int] | None:
        """Which rows of a batch start first: those that share media and prefixes side by side.

        None keeps the order: for rows that cannot overlap, since then their effects have an
        order, and for states that are wanted lazily in order. Pure.
        """
        is_in_order = style.is_lazy and not style.is_by_completion
        if is_in_order or style.threads_for(len(arguments)) == 1:
            return None
        return grouped(arguments, self._facts.order)

    def gates(self, backend: Backend, num_together: int) -> Callable[[], Gate] | None:
        """Makes what each row of a batch waits at until their shared prefix is computed.

        None if nothing is hoisted. `num_together` rows run at once.
        """
        is_useful = backend.abilities.has_prefix_calls and num_together > 1
        if not is_useful or not global_config.enable_precache_with_tracing:
            return None
        return Hoist().row


def _can_be_read_twice(source: object) -> bool:
    if isinstance(source, (list, tuple)):
        return all(map(_can_be_read_twice, source))
    return not (hasattr(source, "read") or hasattr(source, "save"))
