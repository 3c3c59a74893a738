"""What holds for a whole file: for rows that are silent, and for reading them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["AskSettings", "FormatName", "RowSettings"]

FormatName = Literal["jsonl", "csv", "parquet"]


def _setting(default: Any, doc: str, low: float | None, high: float | None = None) -> Any:  # noqa: ANN401
    return field(default=default, metadata={"doc": doc, "low": low, "high": high})


@dataclass(frozen=True, slots=True, kw_only=True)
class AskSettings:
    """What holds for rows that do not say otherwise.

    A row that gives `num_frames` or `fps` replaces both. Flags and docs derive from here.
    """

    num_frames: int | None = _setting(None, "frames of each clip", 1)
    fps: float | None = _setting(None, "frames a second of each clip", 0.001)
    max_tokens: int = _setting(128, "most tokens of an answer", 1)
    temperature: float = _setting(0.0, "chance in choosing tokens; 0 is greedy", 0)
    seed: int | None = _setting(None, "same seed, same answers", None)
    system: str | None = _setting(None, "text that each conversation begins with", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSettings:
    """How the rows of a file are read; plain values, so that two runs can be compared.

    Args:
        format: of the file; None: told by its name.
        template: Jinja text that makes the question of a row's fields; None: as the row has it.
        questions: asked of every row that has none itself.
        num_samples: answers to each question of a row that has no `n`.
        extra_fields: whether a field nobody reads makes the row fail.
    """

    format: FormatName | None = None
    template: str | None = None
    questions: tuple[str, ...] = ()
    num_samples: int = 1
    extra_fields: Literal["refuse", "ignore"] = "refuse"
