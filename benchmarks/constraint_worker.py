"""Times another engine for grammars, in an environment of its own; spoken to in JSON lines.

    python constraint_worker.py xgrammar|outlines-core

    line in                                          line out
    {pieces: [base64], eos_token_id}                 {version}
    {kind, value, walks: [[token id]]}               {compile_ms, processor_ms, first_mask_ms,
                                                      walks: [...]} or {error}

A walk is an answer: before each token its mask is computed. What comes out of a walk is
{mask_us, accept_us}, two lists; they are shorter than the walk if a token was refused. This
file imports nothing of mmserve, which need not be installed there.
"""

from __future__ import annotations

import base64
import importlib.metadata
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np


class Walker(Protocol):
    """One answer under a compiled constraint."""

    def fill(self) -> None:
        """Compute the mask of what may come next."""

    def accept(self, token_id: int) -> bool:
        """Move on, or say that the token may not come."""


class XgrammarWalker:
    """A matcher of xgrammar and the mask that it fills."""

    def __init__(self, matcher: Any, bitmask: Any) -> None:  # noqa: ANN401
        self._matcher = matcher
        self._bitmask = bitmask

    def fill(self) -> None:
        """See `Walker`."""
        self._matcher.fill_next_token_bitmask(self._bitmask)

    def accept(self, token_id: int) -> bool:
        """See `Walker`."""
        return bool(self._matcher.accept_token(token_id))


def xgrammar_maker(
    pieces: Sequence[bytes], eos_token_id: int
) -> Callable[[str, str], Callable[[], Walker]]:
    """A compiler of constraints, without a cache, on as many threads as it takes by default."""
    import xgrammar  # noqa: PLC0415  this environment may have the other engine only

    info = xgrammar.TokenizerInfo(
        list(pieces), vocab_size=len(pieces), stop_token_ids=[eos_token_id]
    )
    compiler = xgrammar.GrammarCompiler(info, cache_enabled=False)
    bitmask = xgrammar.allocate_token_bitmask(1, len(pieces))

    def compiled(kind: str, value: str) -> Callable[[], Walker]:
        if kind == "json_schema":
            grammar = compiler.compile_json_schema(
                value, any_whitespace=False, separators=(",", ":"), strict_mode=False
            )
        elif kind == "choices":
            options = (json.dumps(one, ensure_ascii=False) for one in json.loads(value))
            grammar = compiler.compile_grammar("root ::= " + " | ".join(options))
        else:
            grammar = compiler.compile_regex(value)
        return lambda: XgrammarWalker(xgrammar.GrammarMatcher(grammar), bitmask)

    return compiled


class OutlinesWalker:
    """A guide of outlines-core and the mask that it writes."""

    def __init__(self, guide: Any, mask: np.ndarray) -> None:  # noqa: ANN401
        self._guide = guide
        self._mask = mask

    def fill(self) -> None:
        """See `Walker`."""
        mask = self._mask
        self._guide.write_mask_into(mask.ctypes.data, mask.size, mask.itemsize)

    def accept(self, token_id: int) -> bool:
        """See `Walker`."""
        try:
            self._guide.advance(token_id, return_tokens=False)
        except ValueError:
            return False
        return True


def outlines_maker(
    pieces: Sequence[bytes], eos_token_id: int
) -> Callable[[str, str], Callable[[], Walker]]:
    """A compiler of constraints: a schema to a pattern, a pattern to an index."""
    import outlines_core  # noqa: PLC0415  this environment may have the other engine only
    from outlines_core.json_schema import build_regex_from_schema  # noqa: PLC0415

    ids: dict[bytes, list[int]] = {}
    for number, piece in enumerate(pieces):
        if piece and number != eos_token_id:
            ids.setdefault(piece, []).append(number)
    vocabulary = outlines_core.Vocabulary(eos_token_id, ids)
    mask = np.zeros(-(-len(pieces) // 32), dtype=np.int32)

    def compiled(kind: str, value: str) -> Callable[[], Walker]:
        if kind == "json_schema":
            value = build_regex_from_schema(value, whitespace_pattern="")
        elif kind == "choices":
            value = "|".join(map(re.escape, json.loads(value)))
        index = outlines_core.Index(value, vocabulary)
        return lambda: OutlinesWalker(outlines_core.Guide(index), mask)

    return compiled


MAKERS = {"xgrammar": xgrammar_maker, "outlines-core": outlines_maker}


def timed(
    compiled: Callable[[str, str], Callable[[], Walker]],
    kind: str,
    value: str,
    walks: Sequence[Sequence[int]],
) -> dict[str, Any]:
    """Compile, and walk. Masks and tokens are told in processor time of the thread."""
    start, started = time.perf_counter(), time.process_time()
    new_walker = compiled(kind, value)
    walker = new_walker()
    ready, processor_s = time.perf_counter(), time.process_time() - started
    walker.fill()
    filled = time.perf_counter()
    return {
        "compile_ms": (ready - start) * 1e3,
        "processor_ms": processor_s * 1e3,
        "first_mask_ms": (filled - ready) * 1e3,
        "walks": [_walk(new_walker(), walk) for walk in walks],
    }


def _walk(walker: Walker, token_ids: Sequence[int]) -> dict[str, list[float]]:
    mask_us: list[float] = []
    accept_us: list[float] = []
    for token_id in token_ids:
        start = time.thread_time_ns()
        walker.fill()
        filled = time.thread_time_ns()
        is_accepted = walker.accept(token_id)
        accepted = time.thread_time_ns()
        if not is_accepted:
            break
        mask_us.append((filled - start) / 1e3)
        accept_us.append((accepted - filled) / 1e3)
    return {"mask_us": mask_us, "accept_us": accept_us}


def main() -> None:
    """Answer line by line."""
    engine = sys.argv[1]
    first = json.loads(sys.stdin.readline())
    pieces = [base64.b64decode(one) for one in first["pieces"]]
    compiled = MAKERS[engine](pieces, first["eos_token_id"])
    print(json.dumps({"version": importlib.metadata.version(engine)}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            found = timed(compiled, asked["kind"], asked["value"], asked["walks"])
        except Exception as error:  # noqa: BLE001  each engine refuses in ways of its own
            found = {"error": f"{type(error).__name__}: {error}"[:200]}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
