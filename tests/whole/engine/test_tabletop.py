"""The embedded model: our prompts, numbers and answers are those of transformers."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from mmserve.core import (
    BytesSource,
    EngineConfig,
    ImagePart,
    Request,
    SamplingParams,
    TextPart,
    Turn,
)
from mmserve.engine import Engine, collect, locate_model
from mmserve.testing import TEST_SEEDS, scene

NUM_TOP = 64
GREEDY = SamplingParams(
    max_new_tokens=40, temperature=0.0, return_logprobs=True, top_logprobs=NUM_TOP
)


@pytest.fixture(scope="module")
def tabletop() -> Iterator[Engine]:
    """The embedded model in this process."""
    with Engine.from_config(EngineConfig(threads=1, num_slots=4096)) as engine:
        yield engine


@pytest.fixture(scope="module")
def reference() -> tuple[Any, Any]:
    """The same directory in transformers, unchanged: model and processor."""
    path = locate_model("tabletop")
    model = transformers.LlavaForConditionalGeneration.from_pretrained(
        path, dtype=torch.float32
    )
    return model.eval(), transformers.AutoProcessor.from_pretrained(path, backend="pil")


def png(image: Image.Image) -> ImagePart:
    """A picture as a part."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return ImagePart(BytesSource(buffer.getvalue()))


def ours(engine: Engine, images: list[Image.Image], question: str) -> tuple[Any, Any]:
    """Report and answer of mmserve."""
    parts = (*map(png, images), TextPart(question))
    turns = (Turn("user", parts), Turn("assistant", (), is_open=True))
    ticket = engine.submit(Request(request_id="t", parts=turns, sampling=GREEDY))
    return ticket.report(timeout_s=60), collect(ticket.outputs())


def inputs_of(processor: Any, images: list[Image.Image], question: str) -> Any:
    """The same conversation through transformers' own processor."""
    content = [{"type": "image"} for _ in images] + [{"type": "text", "text": question}]
    text = processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True
    )
    return processor(images=images, text=text, add_special_tokens=False, return_tensors="pt")


QUESTIONS = [
    (1, "How many objects are there?"),
    (1, "Describe the picture as JSON."),
    (2, "Which picture has more objects?"),
]


@pytest.mark.parametrize(("num_pictures", "question"), QUESTIONS)
def test_tabletop_equals_transformers(
    tabletop: Engine, reference: tuple[Any, Any], num_pictures: int, question: str
) -> None:
    """Prompt ids, greedy tokens and the likeliest 64 log-probabilities at each are equal."""
    model, processor = reference
    for seed in list(TEST_SEEDS)[:3]:
        images = [scene(seed + k).image for k in range(num_pictures)]
        prompt, answer = ours(tabletop, images, question)
        inputs = inputs_of(processor, images, question)
        assert list(prompt.token_ids) == inputs["input_ids"][0].tolist()
        with torch.inference_mode():
            ids = torch.tensor([[*prompt.token_ids, *answer.token_ids[0]]])
            logits = model(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                pixel_values=inputs["pixel_values"],
            ).logits[0]
        wanted = torch.log_softmax(logits.double(), dim=-1)[len(prompt.token_ids) - 1 :]
        for entry, row in zip(answer.logprobs[0], wanted[:-1], strict=True):
            assert entry.token_id == int(row.argmax())
            told = {token_id: value for token_id, value, _ in entry.top}
            np.testing.assert_allclose(list(told.values()), row[list(told)].numpy(), atol=1e-3)


def test_tabletop_sees(tabletop: Engine) -> None:
    """Most simple questions about held-out pictures are answered exactly."""
    right = asked = 0
    for seed in list(TEST_SEEDS)[100:112]:
        made = scene(seed)
        for q in made.questions:
            if q.kind in ("count", "number", "colour"):
                asked += 1
                right += ours(tabletop, [made.image], q.question)[1].text == q.answer
    assert asked > 20
    assert right / asked > 0.9


def test_tabletop_is_small() -> None:
    """The embedded model's directory is at most 15 MB."""
    size = sum(p.stat().st_size for p in Path(locate_model("tabletop")).iterdir())
    assert size <= 15_000_000
