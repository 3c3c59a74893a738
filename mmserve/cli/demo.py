"""`mmserve demo`: the main job on the embedded model, and what it cost.

The picture's first question is asked alone, then the others together: they find its KV. The
clip's questions are asked all at once: they share it although none was first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from mmserve.cli import console
from mmserve.cli.console import Column
from mmserve.cli.engines import opener_of
from mmserve.cli.flags import MODEL, Settings, with_settings
from mmserve.cli.samples import Sample, load_samples, sample_request
from mmserve.core import Aborted, Client, Ticket, Usage

__all__ = ["Answered", "Cost", "Part", "demo", "run_demo"]

_COUNTERS = {
    "decoded": "media_decodes_total",
    "encoded": "encoded_items_total",
    "computed_tokens": "prompt_tokens_computed_total",
    "cached_tokens": "prompt_tokens_cached_total",
}
_COLUMNS = (
    Column("question"),
    Column("answer"),
    Column("right"),
    Column("prompt", is_number=True),
    Column("cached", is_number=True),
    Column("first token", is_number=True),
)


@dataclass(frozen=True, slots=True)
class Answered:
    """One question with its answer; times in milliseconds."""

    question: str
    answer: str
    expected: str
    is_right: bool
    prompt_tokens: int
    cached_tokens: int
    first_token_ms: float


@dataclass(frozen=True, slots=True)
class Cost:
    """What all questions about one medium took: files read, pictures or frames encoded."""

    decoded: int
    encoded: int
    computed_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Part:
    """All about one sample."""

    media: str
    kind: str
    answers: tuple[Answered, ...]
    cost: Cost

    @property
    def num_right(self) -> int:
        """Answers that are true."""
        return sum(answer.is_right for answer in self.answers)


@with_settings(MODEL)
def demo(
    ctx: typer.Context,
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object instead of tables.")
    ] = False,
    settings: Settings,
) -> None:
    """Ask several questions about a sample picture and a sample clip, and show what it cost."""
    with opener_of(ctx)(settings.engine()) as client:
        parts = []
        for sample in load_samples():
            with console.waiting(f"asking about {sample.name}"):
                parts.append(run_demo(client, sample))
            if not as_json:
                _print_part(client.model.name, parts[-1])
    if as_json:
        console.say_json(_as_object(client.model.name, parts))


def run_demo(client: Client, sample: Sample) -> Part:
    """Ask all questions about one sample; pictures: the first alone, clips: all at once.

    Raises what the engine refuses. The cost is the difference of the engine's counters, so it
    is only right if nobody else uses the engine.
    """
    before = _counts(client)
    num_alone = 1 if sample.kind == "image" else len(sample.questions)
    indices = range(len(sample.questions))
    answers = [
        *_ask(client, sample, indices[:num_alone]),
        *_ask(client, sample, indices[num_alone:]),
    ]
    after = _counts(client)
    cost = Cost(**{name: round(after[name] - before[name]) for name in _COUNTERS})
    return Part(sample.name, sample.kind, tuple(answers), cost)


def _counts(client: Client) -> dict[str, float]:
    counters = client.counters()
    return {name: counters.get(counter, 0.0) for name, counter in _COUNTERS.items()}


def _ask(client: Client, sample: Sample, indices: range) -> Iterator[Answered]:
    tickets = [
        client.submit(sample_request(f"demo-{sample.name}-{index}", sample, index))
        for index in indices
    ]
    for index, ticket in zip(indices, tickets, strict=True):
        question, expected = sample.questions[index]
        yield _answered(question, expected, ticket)


def _answered(question: str, expected: str, ticket: Ticket) -> Answered:
    text, usage, first_token_ms = "", Usage(0), 0.0
    for output in ticket.outputs():
        text += output.text
        usage = output.usage
        if output.finish is not None and output.finish.reason in ("error", "abort"):
            raise output.finish.error or Aborted("the answer was stopped before its end")
        if output.timing is not None:
            first_token_ms = output.timing.first_token
    return Answered(
        question=question,
        answer=text.strip(),
        expected=expected,
        is_right=_plain(text) == _plain(expected),
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        first_token_ms=round(first_token_ms, 1),
    )


def _plain(text: str) -> str:
    return text.strip().removesuffix(".").casefold()


def _print_part(model: str, part: Part) -> None:
    how = "the first alone, then the rest" if part.kind == "image" else "all at once"
    console.say(f"{part.media}: {len(part.answers)} questions to {model}, {how}")
    console.say()
    rows = [
        (
            answer.question,
            answer.answer,
            "yes" if answer.is_right else f"no: {answer.expected}",
            f"{answer.prompt_tokens:,}",
            f"{answer.cached_tokens:,}",
            f"{answer.first_token_ms:,.0f} ms",
        )
        for answer in part.answers
    ]
    console.say_table(_COLUMNS, rows)
    console.say()
    console.say(_cost_line(part))
    console.say()


def _cost_line(part: Part) -> str:
    cost = part.cost
    unit = "picture" if part.kind == "image" else "frame"
    prompt = sum(answer.prompt_tokens for answer in part.answers)
    return (
        f"{part.num_right} of {len(part.answers)} right. Decoded {_times(cost.decoded)}, "
        f"{cost.encoded} {unit}{'' if cost.encoded == 1 else 's'} encoded;\n"
        f"of {prompt:,} prompt tokens, {cost.computed_tokens:,} were computed."
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _as_object(model: str, parts: list[Part]) -> dict[str, Any]:
    return {
        "model": model,
        "right": sum(part.num_right for part in parts),
        "questions": sum(len(part.answers) for part in parts),
        "parts": [asdict(part) for part in parts],
    }
