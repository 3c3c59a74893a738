"""The sample media that ship with the program, and true answers about them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Literal

from mmserve.core import (
    ImagePart,
    PathSource,
    Request,
    SamplingParams,
    TextPart,
    Turn,
    VideoPart,
)

__all__ = ["Sample", "load_samples", "sample_request"]

_MAX_ANSWER_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Sample:
    """A picture or a clip, and (question, true answer) pairs about it."""

    name: str
    path: Path
    kind: Literal["image", "video"]
    questions: tuple[tuple[str, str], ...]


def load_samples() -> tuple[Sample, ...]:
    """Every sample, in the order of its file. Cost: reads one small file."""
    folder = Path(str(files("mmserve") / "assets" / "samples"))
    entries = json.loads((folder / "samples.json").read_text(encoding="utf-8"))
    return tuple(
        Sample(
            name=entry["file"],
            path=folder / entry["file"],
            kind=entry["kind"],
            questions=tuple((pair["question"], pair["answer"]) for pair in entry["questions"]),
        )
        for entry in entries
    )


def sample_request(request_id: str, sample: Sample, index: int) -> Request:
    """Question `index` about a sample, answered greedily. Pure."""
    source = PathSource(str(sample.path))
    medium = ImagePart(source) if sample.kind == "image" else VideoPart(source)
    user = Turn("user", (medium, TextPart(sample.questions[index][0])))
    return Request(
        request_id=request_id,
        parts=(user, Turn("assistant", (), is_open=True)),
        sampling=SamplingParams(max_new_tokens=_MAX_ANSWER_TOKENS, temperature=0.0),
        client="sample",
    )
