"""A compiler of grammars that works only when a test lets it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from mmserve.constrained import Compiler, NewMatcher
from mmserve.constrained.kept import KeptGrammar
from mmserve.core import Constraint, ConstraintRefused


class Gate:
    """Where the compilation of one text stops until the test opens it."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.opened = threading.Event()


class GatedCompiler:
    """Passes work on to another compiler; texts with a gate wait there first.

    Counts compilations by text, and notes whether one text was ever compiled twice at a time.
    """

    def __init__(self, inner: Compiler) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self._now: Counter[str] = Counter()
        self._gates: dict[str, Gate] = {}
        self.num_compiled: Counter[str] = Counter()
        self.most_at_once = 0

    @contextmanager
    def gate(self, value: str) -> Iterator[Gate]:
        """A gate for one text, opened at the end whatever happens."""
        gate = self._gates[value] = Gate()
        try:
            yield gate
        finally:
            gate.opened.set()

    def compile(self, constraint: Constraint) -> NewMatcher:
        """The grammar, once its gate is open."""
        value = constraint.value
        with self._lock:
            self.num_compiled[value] += 1
            self._now[value] += 1
            self.most_at_once = max(self.most_at_once, self._now[value])
        try:
            gate = self._gates.get(value)
            if gate is not None:
                gate.begun.set()
                assert gate.opened.wait(timeout=120)
            return self._inner.compile(constraint)
        finally:
            with self._lock:
                self._now[value] -= 1

    def cached(self, constraint: Constraint) -> NewMatcher | None:
        """The grammar if it is known."""
        return self._inner.cached(constraint)

    @property
    def used_bytes(self) -> int:
        """Bytes of grammars kept."""
        return self._inner.used_bytes

    @property
    def num_entries(self) -> int:
        """Grammars kept."""
        return self._inner.num_entries

    def kept(self) -> tuple[KeptGrammar, ...]:
        """What the other keeps."""
        return self._inner.kept()


class WordCompiler:
    """Makes nothing; texts that begin with "bad", "odd" and "panic" fail in their own way."""

    def __init__(self) -> None:
        self._kept: dict[Constraint, NewMatcher] = {}

    def compile(self, constraint: Constraint) -> NewMatcher:
        """A maker that stands for the constraint."""
        if constraint.value.startswith("bad"):
            raise ConstraintRefused(
                f"no: {constraint.value}", hint="a way out", field=constraint.kind, reason="bad"
            )
        if constraint.value.startswith("odd"):
            raise RuntimeError("unforeseen")
        if constraint.value.startswith("panic"):
            raise BaseException("a panic")  # noqa: TRY002  (as a panic in Rust is)
        return self._kept.setdefault(constraint, lambda: None)

    def cached(self, constraint: Constraint) -> NewMatcher | None:
        """The maker if there is one."""
        return self._kept.get(constraint)

    @property
    def used_bytes(self) -> int:
        """One for each character."""
        return sum(len(constraint.value) for constraint in self._kept)

    @property
    def num_entries(self) -> int:
        """Makers."""
        return len(self._kept)

    def kept(self) -> tuple[KeptGrammar, ...]:
        """The constraints, of no size."""
        return tuple(KeptGrammar(one, 0, 1, None) for one in self._kept)
