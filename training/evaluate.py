"""Measures exact-match accuracy on held-out scenes and clips, for anything that can answer.

    python -m training.evaluate FOLDER --scenes 2000 --clips 400

From Python, any engine can be measured:

    measure(one_by_one(answer), cases(num_scenes=2000, num_clips=400))

where `answer(images, history, question)` gives a string. An engine that takes videos reads
`case.mp4` instead of `case.images`, by giving `measure` a function of whole cases.
"""

import argparse
import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from transformers import LlavaForConditionalGeneration, LlavaProcessor

from mmserve.testing.clips import clip
from mmserve.testing.scenes import TEST_SEEDS, scene

GROUPS = {
    "attributes": ("colour", "shape", "size"),
    "places": ("what_at", "where"),
    "existence": ("exists",),
    "counts": ("count", "count_shape", "count_colour", "compare_counts"),
    "numbers": ("number",),
    "follow-ups": ("follow_up",),
    "JSON": ("describe",),
    "two pictures": ("compare_pictures",),
    "clips": (
        "change",
        "direction",
        "moved_in",
        "appeared_in",
        "disappeared_in",
        "turned_in",
        "count_start",
        "count_end",
    ),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One question to be answered exactly.

    `images` are the pictures, or the frames of a clip before coding; `mp4` is the clip's
    video, None for pictures.
    """

    kind: str
    images: tuple[Image.Image, ...]
    mp4: bytes | None
    history: tuple[tuple[str, str], ...]
    question: str
    expected: str


Answer = Callable[[tuple[Image.Image, ...], tuple[tuple[str, str], ...], str], str]
AnswerAll = Callable[[Sequence[Case]], Sequence[str]]


def cases(num_scenes: int, num_clips: int, first: int = 0) -> Iterator[Case]:
    """Every question of held-out scenes and clips, from number `first` on."""
    for seed in TEST_SEEDS[first : first + num_scenes]:
        made = scene(seed)
        for q in made.questions:
            images = (made.image, q.other_image) if q.other_image else (made.image,)
            yield Case(q.kind, images, None, q.history, q.question, q.answer)
    for seed in TEST_SEEDS[first : first + num_clips]:
        film = clip(seed)
        for q in film.questions:
            yield Case(q.kind, film.frames, film.mp4, q.history, q.question, q.answer)


def one_by_one(answer: Answer) -> AnswerAll:
    """Adapts a function of (images, history, question)."""
    return lambda many: [answer(case.images, case.history, case.question) for case in many]


def measure(
    answer_all: AnswerAll, every: Iterable[Case], batch: int = 32
) -> dict[str, tuple[int, int]]:
    """(right, asked) for each kind of question."""
    table: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    stream = iter(every)
    while chunk := list(itertools.islice(stream, batch)):
        for case, said in zip(chunk, answer_all(chunk), strict=True):
            right, asked = table[case.kind]
            table[case.kind] = (right + (said.strip() == case.expected), asked + 1)
    return dict(table)


def report(table: dict[str, tuple[int, int]]) -> str:
    """The table as Markdown: groups, then the kinds in them."""
    lines = ["| questions | asked | exact |", "|---|---|---|"]
    for group, kinds in GROUPS.items():
        rows = [(kind, table[kind]) for kind in kinds if kind in table]
        if not rows:
            continue
        right, asked = (sum(pair[i] for _, pair in rows) for i in (0, 1))
        lines.append(f"| **{group}** | {asked:,} | {right / asked:.2%} |")
        if len(rows) > 1:
            lines += [f"| {kind} | {n:,} | {r / n:.2%} |" for kind, (r, n) in rows]
    return "\n".join(lines)


def messages_of(case: Case) -> list[dict[str, object]]:
    """The conversation of `case` in the form chat templates take, pictures first."""
    pictures: list[dict[str, str]] = [{"type": "image"} for _ in case.images]
    if case.mp4 is not None:
        frames = [
            [{"type": "text", "text": f"frame {n}:"}] for n in range(1, len(pictures) + 1)
        ]
        pictures = [part for frame in frames for part in (*frame, {"type": "image"})]
    asked = [question for question, _ in case.history] + [case.question]
    said = [answer for _, answer in case.history]
    first = [*pictures, {"type": "text", "text": asked[0]}]
    messages: list[dict[str, object]] = [{"role": "user", "content": first}]
    for answer, question in zip(said, asked[1:], strict=True):
        messages.append({"role": "assistant", "content": answer})
        messages.append({"role": "user", "content": question})
    return messages


@torch.no_grad()
def answer_with_transformers(
    model: LlavaForConditionalGeneration, processor: LlavaProcessor, many: Sequence[Case]
) -> list[str]:
    """Greedy answers through transformers' own processor and `generate`, as one batch."""
    texts = [
        processor.apply_chat_template(messages_of(case), add_generation_prompt=True)
        for case in many
    ]
    inputs = processor(
        images=[list(case.images) for case in many],
        text=texts,
        padding=True,
        padding_side="left",
        add_special_tokens=False,
        return_tensors="pt",
    )
    inputs["pixel_values"] = inputs["pixel_values"].to(model.dtype)
    tokens = model.generate(**inputs, max_new_tokens=160, do_sample=False)
    answers = tokens[:, inputs["input_ids"].shape[1] :]
    return processor.batch_decode(answers, skip_special_tokens=True)


def main() -> None:
    """Prints the table for an exported folder, in float32 through transformers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scenes", type=int, default=2000)
    parser.add_argument("--clips", type=int, default=400)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = LlavaForConditionalGeneration.from_pretrained(args.folder, dtype=torch.float32)
    processor = LlavaProcessor.from_pretrained(args.folder)
    answer_all = functools.partial(answer_with_transformers, model.eval(), processor)
    print(report(measure(answer_all, cases(args.scenes, args.clips))))


if __name__ == "__main__":
    main()
