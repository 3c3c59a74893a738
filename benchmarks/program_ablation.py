"""The full system, and the same with one part taken away or put in.

full             everything, with room for all KV
no_cache         nothing is reused: no KV is kept, each call has a salt of its own, and the
                 calls that only prepare for reuse (hints, a choice's prompt) are not made
no_tree          KV is reused only up to where an earlier prompt or answer ended: `FlatTable`
fcfs, random     waiting requests start in that order, not by cached prefix
no_parallelism   one program at a time, and each statement ends before the next
no_fork_hint     a fork does not have its shared prefix computed before the branches begin
compiled         full, and programs are compiled
tight, tight_*   orders again, with room for little more than the longest prompt
"""

from __future__ import annotations

import itertools
from collections import abc
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmserve.core import (
    EngineConfig,
    Finish,
    ImagePart,
    Output,
    Request,
    SchedConfig,
    TokensPart,
    Usage,
    VideoPart,
)
from mmserve.engine import Engine
from mmserve.engine.load import Parts, load_parts
from mmserve.lang import ClientBackend
from mmserve.lang.backends.abilities import Abilities
from mmserve.lang.backends.port import Call, OptionScore, Scores
from mmserve.lang.backends.scoring import scoring_request, whole_output
from mmserve.radix import Match
from mmserve.sched.memory import KvMemory
from mmserve.sched.sequence import Sequence

__all__ = [
    "CONFIGURATIONS",
    "PARTS",
    "QUICK",
    "Configuration",
    "FlatTable",
    "NoHintBackend",
    "NothingSharedBackend",
    "open_engine",
]

_ROOMY, _TIGHT = 16384, 896


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The system, or what is left of it.

    Args:
        name: as in records.
        sched: settings of the scheduler.
        num_slots: tokens of KV.
        has_tree: False puts a `FlatTable` before the tree.
        has_hints: False makes no call for a fork's shared prefix.
        is_compiled: True compiles the programs.
        is_slow: it runs in every second round only.
        run: how `run_batch` is called.
    """

    name: str
    sched: SchedConfig = field(default_factory=SchedConfig)
    num_slots: int = _ROOMY
    has_tree: bool = True
    has_hints: bool = True
    is_compiled: bool = False
    is_slow: bool = False
    run: dict[str, Any] = field(default_factory=dict)

    @property
    def engine_key(self) -> tuple[SchedConfig, int, bool]:
        """Equal for those that can use one engine. Pure."""
        return self.sched, self.num_slots, self.has_tree

    def backend(self, engine: Engine, parts: Parts) -> ClientBackend:
        """What programs run on. Pure."""
        if not self.sched.radix_cache:
            return NothingSharedBackend(engine, parts)
        return ClientBackend(engine) if self.has_hints else NoHintBackend(engine)


_FCFS, _RANDOM = SchedConfig(policy="fcfs"), SchedConfig(policy="random")
CONFIGURATIONS = (
    Configuration(name="full"),
    Configuration(name="no_cache", sched=SchedConfig(radix_cache=False), is_slow=True),
    Configuration(name="no_tree", has_tree=False),
    Configuration(name="fcfs", sched=_FCFS),
    Configuration(name="random", sched=_RANDOM),
    Configuration(name="no_parallelism", run={"num_threads": 1, "use_thread": False}),
    Configuration(name="no_fork_hint", has_hints=False),
    Configuration(name="compiled", is_compiled=True),
    Configuration(name="tight", num_slots=_TIGHT, is_slow=True),
    Configuration(name="tight_fcfs", sched=_FCFS, num_slots=_TIGHT, is_slow=True),
    Configuration(name="tight_random", sched=_RANDOM, num_slots=_TIGHT, is_slow=True),
)
PARTS = {
    "cache": ("full", "no_cache"),
    "tree": ("full", "no_tree"),
    "order_over_fcfs": ("full", "fcfs"),
    "order_over_random": ("full", "random"),
    "parallelism": ("full", "no_parallelism"),
    "fork_hint": ("full", "no_fork_hint"),
    "compiler": ("compiled", "full"),
    "order_over_fcfs_if_tight": ("tight", "tight_fcfs"),
    "order_over_random_if_tight": ("tight", "tight_random"),
}
"""Part -> configurations with and without it."""
QUICK = tuple(one for one in CONFIGURATIONS if one.num_slots == _ROOMY)
"""Those that tell something of few rows."""


def open_engine(
    model: str,
    configuration: Configuration,
    **settings: Any,  # noqa: ANN401  of EngineConfig
) -> tuple[Engine, Parts]:
    """An engine as a configuration wants it, and its rooms. Cost: reads all weights."""
    config = EngineConfig(
        model=model,
        sched=configuration.sched,
        **{"num_slots": configuration.num_slots, **settings},
    )
    parts = load_parts(config)
    if not configuration.has_tree:
        FlatTable(parts.scheduler._memory)  # no setting takes the tree away
    return Engine.from_parts(parts), parts


# -- no tree ---------------------------------------------------------------------------------


class FlatTable:
    """Makes a memory reuse KV as a table of whole sequences would, without nodes.

        entries   p p p p|           an earlier prompt, all of it computed
                  p p p p a a|       the same with its answer, once that has ended
        prompt    p p p p q q q q    hits 4: the longest entry that it begins with
        prompt    p p p r r r        hits nothing, though 3 tokens are there

    A prompt that is an entry itself hits all but its last token. An entry counts only while the
    tree still holds all its KV. The order of the waiting is left as it is.

    Args:
        memory: of one scheduler; its `look`, `commit`, `release` and `flush` are replaced.
    """

    def __init__(self, memory: KvMemory) -> None:
        self._memory = memory
        self._entries: set[tuple[str, int, int]] = set()
        self._lengths: set[int] = set()
        self._weights = np.random.default_rng(7).integers(
            0, 2**64, size=1 << 16, dtype=np.uint64, endpoint=False
        )
        self._inner_look, self._inner_commit = memory.look, memory.commit
        self._inner_release, self._inner_flush = memory.release, memory.flush
        for name in ("look", "commit", "release", "flush"):
            setattr(memory, name, getattr(self, name))

    def look(self, sequence: Sequence) -> Match | None:
        """As `KvMemory.look`, but matches end where an entry ends. Pure."""
        match = self._inner_look(sequence)
        if match is None or match.num_tokens <= sequence.computed:
            return match
        end = self._entry_end(sequence, match.num_tokens)
        if end >= match.num_tokens:
            return match
        end = max(end, sequence.computed)
        keys, tree = sequence.keys.view(0, end), self._memory.tree
        if sequence.node is None:
            namespace = sequence.spec.prompt.namespace
            return tree.match(namespace, keys, end, sequence.atomic)
        return tree.follow(sequence.node, keys, sequence.computed, end, sequence.atomic)

    def commit(self, sequence: Sequence) -> None:
        """As `KvMemory.commit`; a prompt that is computed now is an entry. Changes: both."""
        was_prompt = sequence.computed < sequence.num_prompt
        self._inner_commit(sequence)
        if was_prompt and sequence.computed >= sequence.num_prompt:
            self._enter(sequence, sequence.num_prompt)

    def release(self, sequence: Sequence) -> None:
        """As `KvMemory.release`; a whole answer is an entry. Changes: both."""
        if sequence.is_ended and sequence.computed > sequence.num_prompt:
            self._enter(sequence, sequence.computed)
        self._inner_release(sequence)

    def flush(self) -> None:
        """As `KvMemory.flush`. Changes: both."""
        self._entries.clear()
        self._lengths.clear()
        self._inner_flush()

    def _enter(self, sequence: Sequence, num_tokens: int) -> None:
        digest = int(self._digests(sequence.keys.view(0, num_tokens))[-1])
        self._entries.add((sequence.spec.prompt.namespace, num_tokens, digest))
        self._lengths.add(num_tokens)

    def _entry_end(self, sequence: Sequence, num_matched: int) -> int:
        """How much of a match lies in the longest entry that the sequence begins with. Pure."""
        is_cut = num_matched >= sequence.match_limit  # by what must be computed in any case
        end = sequence.known if is_cut else num_matched
        digests = self._digests(sequence.keys.view(0, end))
        namespace = sequence.spec.prompt.namespace
        for length in sorted(self._lengths, reverse=True):
            if length <= end and (namespace, length, int(digests[length - 1])) in self._entries:
                return min(length, num_matched)
        return 0

    def _digests(self, keys: NDArray[np.int64]) -> NDArray[np.uint64]:
        """A number for each beginning of `keys`, uint64 [n]. Pure.

        Two beginnings of one length rarely have the same; a match is compared by the tree
        itself, so that would cost exactness of the ablation, never of an answer.
        """
        return np.cumsum(keys.astype(np.uint64) * self._weights[: len(keys)], dtype=np.uint64)


# -- no hints, no cache ----------------------------------------------------------------------


def asks_for_nothing(request: Request) -> bool:
    """Whether all that a call does is to compute its prompt. Pure."""
    sampling = request.sampling
    return sampling.max_new_tokens == 0 and not sampling.return_logprobs


class NoHintBackend(ClientBackend):
    """Has forks make no call for their shared prefix; that of a `select` is made as ever."""

    @property
    def abilities(self) -> Abilities:
        """Everything but calls that compute a prefix early."""
        return replace(super().abilities, has_prefix_calls=False)


class NothingSharedBackend(NoHintBackend):
    """Gives each call a salt of its own, and makes none that only prepares for reuse."""

    def __init__(self, client: Engine, parts: Parts) -> None:
        super().__init__(client)
        self._intake = parts.intake
        self._salts = itertools.count()

    def start(self, request: Request) -> Any:  # noqa: ANN401  a call of either kind
        """Submit it as if nobody had asked anything before."""
        if asks_for_nothing(request):
            return RenderedCall(request)
        return super().start(replace(request, cache_salt=f"call {next(self._salts)}"))

    def score(
        self, request: Request, options: abc.Sequence[str], hold: abc.Callable[[Call], None]
    ) -> Scores:
        """Score each option by a call of its own, which computes the prompt, too."""
        report = self._intake.prepare(replace(request, options=tuple(options))).report
        num_before = len(report.token_ids)
        calls = []
        for token_ids in report.options:
            parts = (*request.parts, TokensPart(token_ids))
            calls.append(self.start(scoring_request(request, parts, num_before)))
            hold(calls[-1])
        scored = map(whole_output, calls)
        return Scores(
            whole_output(RenderedCall(request)),
            tuple(OptionScore(one.prompt_logprobs or (), one.logprobs) for one in scored),
        )

    def prepare(self, part: ImagePart | VideoPart, cache_salt: str) -> None:
        """Nothing begins early."""


class RenderedCall:
    """A call for no token, of which the engine never hears."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def outputs(self) -> abc.Iterator[Output]:
        """One end, at no cost."""
        usage = Usage(prompt_tokens=0)
        yield Output(self._request.request_id, 0, "", (), usage, finish=Finish("length"))

    def cancel(self) -> None:
        """It has ended already."""
