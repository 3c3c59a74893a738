"""Pictures x questions on a seeded LLaVA of about 60M parameters: mmserve against transformers.

A program is one picture and eight questions of 24 tokens, 16 greedy tokens each. transformers
answers one question at a time, and all eight of a picture as one batch; mmserve is handed all
programs at once. Both run on the same threads in the same process, one after the other, on the
same token ids.
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.models import llava_60m
from benchmarks.record import Record, report
from mmserve.core import (
    BytesSource,
    EngineConfig,
    ImagePart,
    Request,
    SamplingParams,
    TokensPart,
    default_threads,
)
from mmserve.engine import Engine, collect

QUESTION_TOKENS = 24
ANSWER_TOKENS = 16
PICTURE_TOKENS = 576
VOCAB_SIZE = 32000

Answers = dict[tuple[int, int], tuple[int, ...]]


@dataclass(frozen=True)
class Workload:
    """Seeded pictures (as PNG) and questions (as token ids)."""

    pictures: list[bytes]
    questions: list[list[tuple[int, ...]]]

    @property
    def num_programs(self) -> int:
        """Pictures."""
        return len(self.pictures)

    @property
    def least_tokens(self) -> int:
        """Tokens that any engine must compute.

        One BOS, each picture and question once, and all but the last token of each answer.
        """
        num_questions = sum(len(row) for row in self.questions)
        prompt = 1 + self.num_programs * PICTURE_TOKENS + num_questions * QUESTION_TOKENS
        return prompt + num_questions * (ANSWER_TOKENS - 1)


def workload(num_pictures: int, num_questions: int, vocab_size: int, seed: int = 0) -> Workload:
    """Noise pictures of 336 x 336 and random questions without special tokens. Pure."""
    random = np.random.default_rng(seed)
    pictures = []
    for _ in range(num_pictures):
        coarse = random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(coarse).resize((336, 336), Image.Resampling.BICUBIC).save(buffer, "PNG")
        pictures.append(buffer.getvalue())
    shape = (num_pictures, num_questions, QUESTION_TOKENS)
    questions = random.integers(300, vocab_size, shape)
    return Workload(pictures, [[tuple(map(int, q)) for q in row] for row in questions])


def run_mmserve(engine: Engine, work: Workload) -> Answers:
    """All programs at once through the engine."""
    sampling = SamplingParams(max_new_tokens=ANSWER_TOKENS, temperature=0.0, ignore_eos=True)
    tickets = {}
    for i, picture in enumerate(work.pictures):
        image = ImagePart(BytesSource(picture))
        for j, question in enumerate(work.questions[i]):
            parts = (image, TokensPart(question))
            request = Request(request_id=f"{i}-{j}", parts=parts, sampling=sampling)
            tickets[i, j] = engine.submit(request)
    return {at: collect(ticket.outputs()).token_ids[0] for at, ticket in tickets.items()}


class Transformers:
    """The reference: `LlavaForConditionalGeneration.generate`, greedy, with its own cache."""

    def __init__(self, directory: Path) -> None:
        from transformers import AutoImageProcessor, LlavaForConditionalGeneration  # noqa: PLC0415

        self._model = LlavaForConditionalGeneration.from_pretrained(
            directory, dtype=torch.float32
        ).eval()
        self._processor = AutoImageProcessor.from_pretrained(directory, backend="pil")
        config = self._model.config
        self._bos = config.text_config.bos_token_id
        self._image = config.image_token_id

    def one_by_one(self, work: Workload) -> Answers:
        """Each question in a call of its own."""
        answers: Answers = {}
        for i, picture in enumerate(work.pictures):
            for j, question in enumerate(work.questions[i]):
                answers[i, j] = self._generate(picture, [question])[0]
        return answers

    def batched(self, work: Workload) -> Answers:
        """All questions of a picture in one call."""
        answers: Answers = {}
        for i, picture in enumerate(work.pictures):
            rows = self._generate(picture, work.questions[i])
            answers |= {(i, j): row for j, row in enumerate(rows)}
        return answers

    @torch.inference_mode()
    def _generate(
        self, picture: bytes, questions: list[tuple[int, ...]]
    ) -> list[tuple[int, ...]]:
        image = Image.open(io.BytesIO(picture)).convert("RGB")
        pixels = self._processor(images=[image] * len(questions), return_tensors="pt")
        head = [self._bos] + [self._image] * PICTURE_TOKENS
        ids = torch.tensor([[*head, *question] for question in questions])
        tokens = self._model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values=pixels["pixel_values"],
            max_new_tokens=ANSWER_TOKENS,
            min_new_tokens=ANSWER_TOKENS,
            do_sample=False,
        )
        return [tuple(row[ids.shape[1] :].tolist()) for row in tokens]


def timed(call: Callable[[], Answers]) -> tuple[float, Answers]:
    """Seconds and answers of one call."""
    start = time.perf_counter()
    answers = call()
    return time.perf_counter() - start, answers


def measure(directory: Path, work: Workload, repeats: int) -> Record:
    """Run the three ways and compare."""
    torch.set_num_threads(default_threads())
    reference = Transformers(directory)
    warm = Workload(work.pictures[:1], [row[:1] for row in work.questions[:1]])
    with Engine.from_config(EngineConfig(model=str(directory))) as engine:
        run_mmserve(engine, warm)
        reference.one_by_one(warm)
        rounds = [_round(engine, reference, work) for _ in range(repeats)]
    rows = [_row(name, [r[name] for r in rounds], work) for name in rounds[0]]
    ours, alone, batch = rows
    return Record(
        repeats=repeats,
        summary={
            "speedup_vs_transformers_sequential": alone["seconds"] / ours["seconds"],
            "speedup_vs_transformers_batched": batch["seconds"] / ours["seconds"],
            "computed_over_least": ours["tokens_computed"] / work.least_tokens,
            "different_answers": ours["different_answers"],
            "programs_per_second": ours["programs_per_s"],
        },
        rows=rows,
    )


def _round(
    engine: Engine, reference: Transformers, work: Workload
) -> dict[str, dict[str, Any]]:
    engine.flush_cache(timeout_s=10.0)
    before = engine.counters()
    ours_s, ours = timed(lambda: run_mmserve(engine, work))
    after = engine.counters()
    alone_s, alone = timed(lambda: reference.one_by_one(work))
    batch_s, batch = timed(lambda: reference.batched(work))
    computed = after["tokens_computed_total"] - before["tokens_computed_total"]
    different = sum(ours[at] != alone[at] for at in alone)
    return {
        "mmserve": {"seconds": ours_s, "tokens_computed": computed, "different": different},
        "transformers, one by one": {"seconds": alone_s, "different": 0},
        "transformers, batch of a picture": {
            "seconds": batch_s,
            "different": sum(batch[at] != alone[at] for at in alone),
        },
    }


def _row(name: str, rounds: list[dict[str, Any]], work: Workload) -> dict[str, Any]:
    seconds = float(np.median([r["seconds"] for r in rounds]))
    return {
        "engine": name,
        "seconds": seconds,
        "programs_per_s": work.num_programs / seconds,
        "tokens_computed": rounds[-1].get("tokens_computed", ""),
        "different_answers": rounds[-1]["different"],
    }


def main() -> None:
    """Parse flags, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write one JSON object ('-': to stdout)")
    parser.add_argument("--quick", action="store_true", help="2 pictures instead of 16")
    parser.add_argument("--repeats", type=int, default=1)
    flags = parser.parse_args()
    with TemporaryDirectory() as folder:
        work = workload(2 if flags.quick else 16, 8, VOCAB_SIZE)
        report(measure(llava_60m(Path(folder)), work, flags.repeats), flags.json)


if __name__ == "__main__":
    main()
