"""A mixed load without end, for benchmarks that watch what an engine keeps.

Each asker draws one request after the other from a seed: questions about pictures that are new
or were seen before, long and short texts, samples of one prompt, grammars, requests that are
cancelled after their first news, and requests that must be refused.
"""

from __future__ import annotations

import io
import threading
from collections import Counter
from collections.abc import Callable

import numpy as np
from PIL import Image

from mmserve.core import (
    BytesSource,
    Constraint,
    ImagePart,
    MmserveError,
    Request,
    RequestRefused,
    SamplingParams,
    TextPart,
    TokensPart,
    Turn,
)
from mmserve.engine import Engine, collect

__all__ = ["MixedLoad"]

_NUM_KEPT_PICTURES = 24
_NUM_GRAMMARS = 40
_SHARES = {"picture": 4, "text": 4, "samples": 2, "grammar": 3, "cancelled": 2, "refused": 1}


class MixedLoad:
    """Askers in threads of their own, until told to stop. Use it as a context manager.

    Args:
        engine: of a model that sees pictures.
        num_askers: requests under way at any time.
        seed: of everything asked.
    """

    def __init__(self, engine: Engine, num_askers: int, seed: int = 0) -> None:
        self.counts: Counter[str] = Counter()
        """Requests that have ended, by kind."""
        self.failures: list[str] = []
        """What went wrong that should not."""
        self._engine = engine
        self._vocab_size = engine.model.vocab_size
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        kept = np.random.default_rng(seed)
        self._pictures = [picture(kept) for _ in range(_NUM_KEPT_PICTURES)]
        self._threads = [
            threading.Thread(target=self._ask_on, args=(number, seed), daemon=True)
            for number in range(num_askers)
        ]

    def __enter__(self) -> MixedLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _ask_on(self, number: int, seed: int) -> None:
        random = np.random.default_rng((seed, number))
        kinds = [kind for kind, share in _SHARES.items() for _ in range(share)]
        asks: dict[str, Callable[[np.random.Generator, str], None]] = {
            "cancelled": self._cancelled,
            "refused": self._refused,
        }
        num_asked = 0
        while not self._is_over.is_set():
            kind = kinds[random.integers(len(kinds))]
            num_asked += 1
            try:
                asks.get(kind, self._answered)(random, kind)
            except MmserveError as error:
                self._note(f"{kind}: {error}")
            with self._lock:
                self.counts[kind] += 1

    def _note(self, failure: str) -> None:
        with self._lock:
            self.failures.append(failure)

    def _answered(self, random: np.random.Generator, kind: str) -> None:
        collect(self._engine.submit(self._request(random, kind)).outputs())

    def _cancelled(self, random: np.random.Generator, kind: str) -> None:
        ticket = self._engine.submit(self._request(random, "text"))
        for output in ticket.outputs():
            ticket.cancel()
            if output.finish is not None and output.finish.reason not in {"abort", "length"}:
                self._note(f"{kind}: it ended with {output.finish.reason}")

    def _refused(self, random: np.random.Generator, kind: str) -> None:
        length = self._engine.model.context_length + 1 + int(random.integers(50))
        parts = (TokensPart((5,) * length),)
        sampling = SamplingParams(max_new_tokens=1, temperature=0.0)
        try:
            collect(
                self._engine.submit(
                    Request(request_id=kind, parts=parts, sampling=sampling)
                ).outputs()
            )
        except RequestRefused:
            return
        self._note(f"{kind}: a prompt of {length} tokens was answered")

    def _request(self, random: np.random.Generator, kind: str) -> Request:
        """A request of a kind; half of the pictures are new ones. Changes: the generator."""
        num_tokens = int(random.integers(4, 25))
        sampling = SamplingParams(
            max_new_tokens=num_tokens,
            temperature=float(random.choice([0.0, 1.0])),
            ignore_eos=kind in {"text", "samples"},
            n=3 if kind == "samples" else 1,
            constraint=_grammar(random) if kind == "grammar" else None,
        )
        if kind in {"picture", "grammar"}:
            return Request(request_id=kind, parts=self._question(random), sampling=sampling)
        length = int(random.integers(8, 200))
        token_ids = random.integers(300, self._vocab_size, length)
        parts = (TokensPart(tuple(token_ids.tolist())),)
        return Request(request_id=kind, parts=parts, sampling=sampling)

    def _question(self, random: np.random.Generator) -> tuple[Turn, ...]:
        if random.random() < 0.5:
            seen = picture(random)
        else:
            seen = self._pictures[random.integers(len(self._pictures))]
        text = TextPart(f"What stands in place {random.integers(10_000)}?")
        turn = Turn("user", (ImagePart(BytesSource(seen)), text))
        return turn, Turn("assistant", (), is_open=True)


def picture(random: np.random.Generator) -> bytes:
    """A PNG of 96 to 320 pixels a side. Changes: the generator."""
    coarse = random.integers(0, 256, (6, 6, 3), dtype=np.uint8)
    size = (int(random.integers(96, 321)), int(random.integers(96, 321)))
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(buffer, "PNG")
    return buffer.getvalue()


def _grammar(random: np.random.Generator) -> Constraint:
    """One of several regexes, more than a few of which are compiled again and again."""
    number = random.integers(_NUM_GRAMMARS)
    return Constraint("regex", rf"(yes|no|perhaps), because of [a-z]{{1,6}} {number}")
