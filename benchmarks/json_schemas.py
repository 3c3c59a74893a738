"""Real JSON schemas: refused with a reason, or every answer that ends is valid.

Each schema is compiled and answered by a model of random numbers at temperature 1, under biases
that provoke failure: whitespace, digits, quotes, escapes, other scripts, brackets, signs. An
answer that ends is parsed and validated by `jsonschema` in the schema's own draft, with its
format checks. After half of the budget the model leans towards ends, so that most answers do.

    python -m benchmarks.json_schemas --data schemas.jsonl --json results.json

The data is one object a line: `set`, `id`, `schema`.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import jsonschema
import numpy as np

from benchmarks.record import Record, report
from mmserve.constrained import GrammarCompiler
from mmserve.core import Constraint, ConstraintRefused, Matcher

_BORDERS = rb"""
    {} [] {" ": ":" "," "} "] }} ]] }] ]} ," }, ], [[ [{ ""
    00 12 99 -1 -0 0. 1e E+ e5 .5 1.0 2020 -01- true false null the and ab xyz Aa
    \" \\ \n \u00 \t
"""
_OTHERS = (
    "\u00e9",
    "\u00df",
    "\u5317\u4eac",
    "\u5fc3",
    "\U0001f600",
    "\u0430",
    "\u2028",
    "\u0301",
)
_PIECES = (
    *(bytes([code]) for code in range(256)),
    *_BORDERS.split(),
    *(b"  ", b"\n\n", b", ", b": ", b"\n  ", b'": "', b'", "'),
    *(text.encode() for text in _OTHERS),
)
_END = len(_PIECES)
_CLOSERS = frozenset((b"}", b"]", b'"', b'"}', b'"]', b"}}", b"]]", b"}]", b"]}", b"0", b"1"))
_BIASES: Mapping[str, frozenset[bytes]] = {
    "nothing": frozenset(),
    "whitespace": frozenset(one for one in _PIECES if not one.strip()),
    "digits": frozenset(one for one in _PIECES if one.isdigit()),
    "letters": frozenset(one for one in _PIECES if one.isalpha()),
    "quotes": frozenset(one for one in _PIECES if b'"' in one),
    "escapes": frozenset(one for one in _PIECES if b"\\" in one),
    "numbers": frozenset(one for one in _PIECES if one.strip(b"0123456789+-.eE") == b""),
    "openings": frozenset(one for one in _PIECES if one[-1:] in (b"[", b"{")),
    "ends": _CLOSERS,
    "commas": frozenset(one for one in _PIECES if b"," in one),
    "other scripts": frozenset(one for one in _PIECES if one[0] > 127),
}
_STRENGTH = 5.0
_END_STRENGTH = 12.0


@dataclass(slots=True)
class Outcome:
    """What became of one schema."""

    collection: str
    name: str
    compile_ms: float = 0.0
    grown_bytes: int = 0
    refusal: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def read_schemas(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of schemas."""
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def compiler() -> GrammarCompiler:
    """Of bytes, and of tokens that cross the borders of JSON; it keeps no grammar."""
    return GrammarCompiler(
        [*_PIECES, b""], eos_token_ids=[_END], vocab_size=_END + 1, cache_bytes=0
    )


def try_schema(
    compile_with: GrammarCompiler,
    row: Mapping[str, Any],
    num_answers: int,
    num_tokens: int,
    seed: int,
) -> Outcome:
    """Compile one schema and validate its answers; times are of the processor."""
    outcome = Outcome(str(row["set"]), str(row["id"]))
    text = json.dumps(row["schema"], ensure_ascii=False)
    gc.collect()
    before = _resident_bytes()
    started = time.thread_time()
    try:
        make = compile_with.compile(Constraint("json_schema", text))
    except ConstraintRefused as error:
        outcome.compile_ms = (time.thread_time() - started) * 1e3
        keyword = error.fields.get("keyword") or error.message[:80]
        outcome.refusal = f"{error.fields.get('reason')}: {keyword}"
        return outcome
    outcome.compile_ms = (time.thread_time() - started) * 1e3
    outcome.grown_bytes = max(0, _resident_bytes() - before)
    validator = validator_of(row["schema"])
    rng = random.Random(f"{seed} {row['id']}")
    for bias in rng.sample(sorted(_BIASES), min(num_answers, len(_BIASES))):
        try:
            answer = draw(make(), np.random.default_rng(rng.getrandbits(32)), bias, num_tokens)
        except ConstraintRefused as error:
            outcome.counts["stuck"] += 1
            outcome.failures.append(f"{bias}: {error.message} {error.fields}"[:300])
            continue
        if answer is None:
            outcome.counts["not_finished"] += 1
            continue
        problem = problem_of(validator, answer)
        outcome.counts["invalid" if problem else "valid"] += 1
        if problem:
            outcome.failures.append(f"{bias}: {problem} in {answer[:200]!r}")
    return outcome


def draw(
    matcher: Matcher, rng: np.random.Generator, bias: str, num_tokens: int
) -> bytes | None:
    """The text of an answer; None if it does not end within the budget.

    Logits are normal, those that the bias favours higher; drawn at temperature 1.
    """
    favoured = np.array([_STRENGTH * (one in _BIASES[bias]) for one in _PIECES] + [0.0])
    closing = np.array([_END_STRENGTH * (one in _CLOSERS) for one in _PIECES] + [20.0])
    content: list[bytes] = []
    for order in range(num_tokens):
        ids = np.flatnonzero(np.unpackbits(matcher.allowed().view(np.uint8), bitorder="little"))
        leaning = favoured if 2 * order < num_tokens else closing
        scores = leaning[ids] + rng.normal(size=len(ids)) + rng.gumbel(size=len(ids))
        token_id = int(ids[int(np.argmax(scores))])
        if token_id == _END:
            return b"".join(content)
        matcher.accept(token_id)
        content.append(_PIECES[token_id])
    return None


def validator_of(schema: Any) -> Any:  # noqa: ANN401 - jsonschema's protocol
    """Of the schema's own draft, or the newest, with its format checks. Pure."""
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    return kind(schema, format_checker=kind.FORMAT_CHECKER)


def problem_of(validator: Any, answer: bytes) -> str:  # noqa: ANN401
    """Why an answer is not valid; empty if it is. Pure."""
    try:
        value = json.loads(answer)
    except ValueError as error:
        return f"not JSON ({error})"
    try:
        found = next(iter(validator.iter_errors(value)), None)
    except Exception as error:  # noqa: BLE001  whatever the validator stumbles over is told
        return f"the validator failed: {error!r}"
    return "" if found is None else f"{found.message[:200]} at {found.json_path}"


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def rows_of(outcomes: Sequence[Outcome]) -> Iterator[dict[str, Any]]:
    """A row for each collection, one for all, and one for each reason of refusal. Pure."""
    collections = sorted({one.collection for one in outcomes})
    for name in (*collections, "all"):
        here = [one for one in outcomes if name in (one.collection, "all")]
        counts = sum((one.counts for one in here), Counter())
        yield {
            "table": "collections",
            "name": name,
            "schemas": len(here),
            "accepted": sum(not one.refusal for one in here),
            "refused": sum(bool(one.refusal) for one in here),
            **{key: counts[key] for key in ("valid", "invalid", "not_finished", "stuck")},
            "compile_p50_ms": median(one.compile_ms for one in here),
            "compile_max_ms": max(one.compile_ms for one in here),
            "grown_max_mb": max(one.grown_bytes for one in here) / 1e6,
        }
    for reason, count in Counter(one.refusal for one in outcomes if one.refusal).most_common():
        yield {"table": "refusals", "name": reason, "schemas": count}


def summary_of(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The figures that targets name. Pure."""
    accepted = [one for one in outcomes if not one.refusal]
    shares = {
        name: sum(not one.refusal for one in outcomes if one.collection == name)
        / sum(one.collection == name for one in outcomes)
        for name in {one.collection for one in outcomes}
    }
    hardest = sorted(shares, key=lambda name: shares[name])[:2]
    others = [one for one in outcomes if one.collection not in hardest] or list(outcomes)
    times = sorted(one.compile_ms for one in outcomes)
    counts = sum((one.counts for one in outcomes), Counter())
    return {
        "accepted_share": len(accepted) / len(outcomes),
        "accepted_share_outside_two_hardest": sum(not one.refusal for one in others)
        / len(others),
        "invalid": counts["invalid"],
        "valid": counts["valid"],
        "not_finished": counts["not_finished"],
        "stuck": counts["stuck"],
        "compile_p50_ms": times[len(times) // 2],
        "compile_p99_ms": times[min(len(times) - 1, int(len(times) * 0.99))],
        "compile_max_ms": times[-1],
        "grown_max_mb": max(one.grown_bytes for one in outcomes) / 1e6,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--json", help="where the record goes; - for standard output")
    parser.add_argument("--answers", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    compile_with = compiler()
    outcomes = [
        try_schema(compile_with, row, options.answers, options.tokens, options.seed)
        for row in read_schemas(options.data)
    ]
    for one in outcomes:
        for failure in one.failures:
            print(f"{one.name}: {failure}", file=sys.stderr)
    record = Record(repeats=1, summary=summary_of(outcomes), rows=list(rows_of(outcomes)))
    report(record, options.json)


if __name__ == "__main__":
    main()
