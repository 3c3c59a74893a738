"""Proves a family: prompts, log-probabilities and greedy tokens against transformers.

A family gives a tiny seeded checkpoint and how transformers reads a case; everything else is
the same for all: cases, engines (whole, in pieces, together, alone, cold, warm), goldens.

    python -m support.proof FAMILY     (from tests/) writes a file's goldens anew
"""

from __future__ import annotations

import importlib
import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image

from mmserve.core import (
    BytesSource,
    EngineConfig,
    FramesSource,
    ImagePart,
    Part,
    Request,
    SamplingParams,
    SchedConfig,
    TextPart,
    Turn,
    VideoPart,
)
from mmserve.engine import Answer, Engine, collect

__all__ = [
    "CLIP_CASES",
    "PICTURE_CASES",
    "TEXT_CASES",
    "Case",
    "Clip",
    "Family",
    "Proof",
    "Reading",
    "check_goldens",
    "picture",
]

GOLDENS = Path(__file__).parents[1] / "goldens"
NUM_TOKENS = 64
TOLERANCE = 1e-3

Picture = np.ndarray
"""uint8 [H, W, 3]."""


@dataclass(frozen=True)
class Clip:
    """Frames uint8 [H, W, 3] and their rate."""

    frames: tuple[Picture, ...]
    fps: float


Saying = tuple[str, tuple[str | Picture | Clip, ...]]
"""A role and its parts in order."""


@dataclass(frozen=True)
class Case:
    """One conversation, answered next."""

    name: str
    turns: tuple[Saying, ...]

    @property
    def pictures(self) -> list[Picture]:
        """All pictures in order."""
        return [p for _, parts in self.turns for p in parts if isinstance(p, np.ndarray)]

    @property
    def clips(self) -> list[Clip]:
        """All clips in order."""
        return [p for _, parts in self.turns for p in parts if isinstance(p, Clip)]

    @property
    def messages(self) -> list[dict[str, Any]]:
        """As chat templates take it, media by place."""
        return [
            {"role": role, "content": [_content(part) for part in parts]}
            for role, parts in self.turns
        ]


def _content(part: str | Picture | Clip) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "video" if isinstance(part, Clip) else "image"}


def picture(seed: int, width: int, height: int) -> Picture:
    """Blocks of random colours with a soft ramp over them: structure at every scale."""
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (5, 7, 3), dtype=np.uint8)
    large = np.asarray(Image.fromarray(blocks).resize((width, height), Image.Resampling.BOX))
    ramp = np.linspace(0, 40, width, dtype=np.int64)[None, :, None]
    return np.clip(large.astype(np.int64) + ramp - 20, 0, 255).astype(np.uint8)


def _clip(seed: int, num_frames: int, width: int = 72, height: int = 56) -> Clip:
    return Clip(tuple(picture(seed + k, width, height) for k in range(num_frames)), 2.0)


TEXT_CASES = (
    Case("text", (("user", ("How many red cubes are on the table?",)),)),
    Case(
        "chat",
        (
            ("user", ("Name a colour.",)),
            ("assistant", ("Red.",)),
            ("user", ("And a shape, but not the one that you named before, please.",)),
        ),
    ),
)
PICTURE_CASES = (
    Case("one picture", (("user", (picture(1, 96, 64), "What is this?")),)),
    Case(
        "three sizes",
        (
            (
                "user",
                (
                    "First: ",
                    picture(2, 64, 64),
                    "second: ",
                    picture(3, 131, 47),
                    picture(4, 33, 90),
                    "Which one is red?",
                ),
            ),
        ),
    ),
    Case(
        "in the middle",
        (
            ("user", ("Hello.",)),
            ("assistant", ("Hello! What do you want to know?",)),
            ("user", ("Look at ", picture(5, 80, 112), " and say what it is.")),
            ("assistant", ("A table.",)),
            ("user", ("Are you sure?",)),
        ),
    ),
)
CLIP_CASES = (
    Case("clip", (("user", (_clip(10, 5), "What happens?")),)),
    Case(
        "clip and picture",
        (("user", ("Is ", picture(6, 64, 48), " in ", _clip(20, 4, 60, 84), "?")),),
    ),
)


@dataclass(frozen=True)
class Reading:
    """What an engine made of a case: prompt, greedy tokens, the likeliest five at each."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    tops: tuple[Mapping[int, float], ...]


@dataclass(frozen=True)
class Family:
    """One family to prove.

    Args:
        name: folder of its goldens.
        make: gives the directory of a tiny seeded checkpoint.
        cases: conversations it can read.
        inputs: transformers' inputs of a case, by its processor; None: `plain_inputs`.
        processor: loads transformers' processor; None: the one that the directory names, on
            Pillow.
        settings: of the engine, beside the usual ones.
        auto: class of transformers that loads the checkpoint.
        num_tokens: greedy tokens compared.
    """

    name: str
    make: Callable[[], Path]
    cases: tuple[Case, ...]
    inputs: Callable[[Any, Case], Mapping[str, Any]] | None = None
    processor: Callable[[Path], Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    auto: Any = transformers.AutoModelForImageTextToText
    num_tokens: int = NUM_TOKENS


def plain_inputs(processor: Any, case: Case) -> Mapping[str, Any]:
    """A case through a processor of transformers (or a tokenizer): text, pictures, clips."""
    messages: Any = case.messages
    if (
        not case.pictures
        and not case.clips
        and isinstance(processor, transformers.PreTrainedTokenizerBase)
    ):
        messages = [
            {"role": role, "content": "".join(str(part) for part in parts)}
            for role, parts in case.turns
        ]
        return processor.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
    text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    media: dict[str, Any] = {}
    if case.pictures:
        media["images"] = [Image.fromarray(p) for p in case.pictures]
    if case.clips:
        media["videos"] = [list(clip.frames) for clip in case.clips]
    bos = getattr(getattr(processor, "tokenizer", processor), "bos_token", None)
    is_begun = bool(bos) and text.startswith(bos)
    return processor(text=[text], return_tensors="pt", add_special_tokens=not is_begun, **media)


class Proof:
    """One family's checkpoint, read by transformers and by engines of ours.

    Args:
        family: what to prove.
    """

    def __init__(self, family: Family) -> None:
        self.family = family
        self.directory = family.make()

    @cached_property
    def model(self) -> Any:
        """Transformers' model, float32."""
        return self.family.auto.from_pretrained(self.directory, dtype=torch.float32).eval()

    @cached_property
    def processor(self) -> Any:
        """Transformers' processor, or tokenizer if there is no more."""
        if self.family.processor is not None:
            return self.family.processor(self.directory)
        has_more = any(
            (self.directory / name).is_file()
            for name in ("processor_config.json", "preprocessor_config.json")
        )
        if not has_more:
            return transformers.AutoTokenizer.from_pretrained(self.directory)
        return transformers.AutoProcessor.from_pretrained(self.directory, backend="pil")

    @cached_property
    def expected(self) -> dict[str, Reading]:
        """What transformers says, by case."""
        return {case.name: self._expected(case) for case in self.family.cases}

    @torch.inference_mode()
    def _expected(self, case: Case) -> Reading:
        inputs = dict((self.family.inputs or plain_inputs)(self.processor, case))
        for name, value in inputs.items():
            if torch.is_tensor(value) and value.is_floating_point():
                inputs[name] = value.float()
        num = self.family.num_tokens
        found = self.model.generate(
            **inputs,
            do_sample=False,
            min_new_tokens=num,
            max_new_tokens=num,
            output_logits=True,
            return_dict_in_generate=True,
            eos_token_id=None,
        )
        num_prompt = inputs["input_ids"].shape[1]
        tops = []
        for logits in found.logits:
            best = torch.log_softmax(logits[0].float(), -1).topk(5)
            tops.append(dict(zip(best.indices.tolist(), best.values.tolist(), strict=True)))
        ids = found.sequences[0].tolist()
        return Reading(tuple(ids[:num_prompt]), tuple(ids[num_prompt:]), tuple(tops))

    def engine(self, **sched: Any) -> Engine:
        """An engine on the checkpoint, on one thread."""
        settings = {"num_slots": 4096, "threads": 1, **self.family.settings}
        config = EngineConfig(
            model=str(self.directory), sched=SchedConfig(**sched), verify_steps=True, **settings
        )
        return Engine.from_config(config)

    def read(self, engine: Engine, cases: Sequence[Case]) -> list[Reading]:
        """Cases asked all at once."""
        tickets = [engine.submit(self._request(case)) for case in cases]
        reports = [ticket.report(60) for ticket in tickets]
        answers: list[Answer] = [collect(ticket.outputs()) for ticket in tickets]
        return [
            _reading(report.token_ids, answer)
            for report, answer in zip(reports, answers, strict=True)
        ]

    def _request(self, case: Case) -> Request:
        said = [Turn(role, tuple(_part(part) for part in parts)) for role, parts in case.turns]
        sampling = SamplingParams(
            max_new_tokens=self.family.num_tokens,
            temperature=0.0,
            ignore_eos=True,
            return_logprobs=True,
            top_logprobs=5,
        )
        turns: tuple[Part, ...] = (*said, Turn("assistant", (), is_open=True))
        return Request(request_id=case.name, parts=turns, sampling=sampling)

    def check(self, found: Sequence[Reading]) -> None:
        """Assert that readings of all cases, in order, are those of transformers."""
        for case, reading in zip(self.family.cases, found, strict=True):
            same(reading, self.expected[case.name], f"{self.family.name}: {case.name}")

    def check_everyhow(self) -> None:
        """Assert it cold and warm, together and alone, whole and in awkward pieces."""
        cases = self.family.cases
        with self.engine() as engine:
            self.check(self.read(engine, cases))
            self.check(self.read(engine, cases))
            assert engine.counters()["prompt_tokens_cached_total"] > 0
        with self.engine(chunk_tokens=7, max_step_tokens=23, radix_cache=False) as engine:
            self.check([self.read(engine, [case])[0] for case in cases])


def _part(part: str | Picture | Clip) -> TextPart | ImagePart | VideoPart:
    if isinstance(part, str):
        return TextPart(part)
    if isinstance(part, Clip):
        frames = tuple(BytesSource(_png(frame)) for frame in part.frames)
        return VideoPart(FramesSource(frames, part.fps))
    return ImagePart(BytesSource(_png(part)))


def _png(pixels: Picture) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def _reading(prompt_ids: tuple[int, ...], answer: Answer) -> Reading:
    tops = [
        {token_id: value for token_id, value, _ in entry.top} for entry in answer.logprobs[0]
    ]
    return Reading(tuple(prompt_ids), answer.token_ids[0], tuple(tops))


def same(found: Reading, expected: Reading, what: str) -> None:
    """Assert equal prompts and greedy tokens, log-probabilities within 1e-3."""
    assert found.prompt_ids == expected.prompt_ids, f"{what}: another prompt"
    for place, (ours, theirs) in enumerate(zip(found.tops, expected.tops, strict=True)):
        gaps = [abs(ours[token] - value) for token, value in theirs.items() if token in ours]
        assert len(gaps) >= 4, f"{what}: other tokens are likely at {place}"
        assert max(gaps) < TOLERANCE, f"{what}: log-probabilities at {place} differ: {gaps}"
    assert found.token_ids == expected.token_ids, f"{what}: other tokens"


def golden_of(proof: Proof, case: Case) -> dict[str, Any]:
    """A case as a person reads it: the prompt's text with runs of one token counted."""
    reading = proof.expected[case.name]
    tokenizer = getattr(proof.processor, "tokenizer", proof.processor)
    pieces: list[str] = []
    plain: list[int] = []
    for token_id, run in groupby(reading.prompt_ids):
        num = len(list(run))
        if num < 4:
            plain += [token_id] * num
            continue
        pieces += [tokenizer.decode(plain), f"[{tokenizer.decode([token_id])} x {num}]"]
        plain = []
    pieces.append(tokenizer.decode(plain))
    best = [round(max(top.values()), 3) for top in reading.tops[:8]]
    return {
        "prompt": [piece for piece in pieces if piece],
        "prompt_tokens": len(reading.prompt_ids),
        "answer": tokenizer.decode(reading.token_ids),
        "answer_ids": list(reading.token_ids),
        "first_logprobs": best,
    }


def check_goldens(proof: Proof) -> None:
    """Assert that transformers says today what the goldens say."""
    folder = GOLDENS / proof.family.name
    for case in proof.family.cases:
        path = folder / f"{case.name.replace(' ', '-')}.json"
        golden = json.loads(path.read_text())
        today = golden_of(proof, case)
        assert golden["prompt"] == today["prompt"], path
        assert golden["answer_ids"] == today["answer_ids"], path
        np.testing.assert_allclose(golden["first_logprobs"], today["first_logprobs"], atol=2e-3)


def _write(name: str) -> None:
    module: Any = importlib.import_module(f"support.families.{name}")
    for family in getattr(module, "FAMILIES", None) or (module.FAMILY,):
        _write_goldens(family)


def _write_goldens(family: Family) -> None:
    proof = Proof(family)
    folder = GOLDENS / family.name
    folder.mkdir(parents=True, exist_ok=True)
    for case in family.cases:
        lines = [
            f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
            for key, value in golden_of(proof, case).items()
        ]
        path = folder / f"{case.name.replace(' ', '-')}.json"
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        _write(argument)
