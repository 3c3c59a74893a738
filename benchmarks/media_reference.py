"""transformers as a lane: `generate`, greedy, nothing kept between calls."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
import transformers
from PIL import Image

from benchmarks.elsewhere import Watch
from benchmarks.media_asks import Ask, Clip, Item, Picture, Program
from benchmarks.media_lanes import Done

__all__ = ["Reference", "TransformersLane"]


class Reference:
    """A checkpoint in transformers, and what its processor makes of pictures and clips.

    Args:
        directory: of the checkpoint.
        picture_tokens: of one picture.
        frame_tokens: of one frame of a clip; a clip ends with one more token.
        processor: of transformers, for pictures and single frames; None: the checkpoint's own.
    """

    def __init__(
        self,
        directory: Path,
        *,
        picture_tokens: int = 0,
        frame_tokens: int = 0,
        processor: Any = None,  # noqa: ANN401  of transformers
    ) -> None:
        kind = transformers.AutoModelForImageTextToText
        self.model: Any = kind.from_pretrained(directory, dtype=torch.float32).eval()
        self.model.generation_config.eos_token_id = None
        self._processor = processor or transformers.AutoImageProcessor.from_pretrained(
            directory, backend="pil"
        )
        self._picture_tokens, self._frame_tokens = picture_tokens, frame_tokens

    def token_ids(self, ask: Ask) -> list[int]:
        """The whole prompt, a BOS and the places of media included. Pure."""
        config = self.model.config
        ids = [config.text_config.bos_token_id]
        for item in ask.items:
            if isinstance(item, Picture):
                ids += [config.image_token_id] * self._picture_tokens
            elif isinstance(item, Clip):
                ids += [config.video_token_id] * (item.num_frames * self._frame_tokens + 1)
            else:
                ids += item
        return ids

    @torch.inference_mode()
    def answer(self, asks: Sequence[Ask]) -> list[tuple[int, ...]]:
        """Answers of one batch, shorter prompts padded on the left."""
        rows = [self.token_ids(ask) for ask in asks]
        width = max(map(len, rows))
        pad = self.model.config.text_config.pad_token_id
        ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows])
        known = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
        num_answer = asks[0].num_answer
        tokens = self.model.generate(
            input_ids=ids,
            attention_mask=known,
            max_new_tokens=num_answer,
            min_new_tokens=num_answer,
            do_sample=False,
            pad_token_id=pad,
            **self._inputs([item for ask in asks for item in ask.media]),
        )
        return [tuple(row[width:].tolist()) for row in tokens]

    def _inputs(self, media: Sequence[Item]) -> dict[str, torch.Tensor]:
        pictures = [item for item in media if isinstance(item, Picture)]
        clips = [item for item in media if isinstance(item, Clip)]
        found = {}
        if pictures:
            opened = [Image.open(io.BytesIO(one.content)).convert("RGB") for one in pictures]
            found["pixel_values"] = self._pixels(opened)
        if clips:
            found["pixel_values_videos"] = torch.stack(
                [self._pixels(frames_of(clip)) for clip in clips]
            )
        return found

    def _pixels(self, images: Sequence[Image.Image]) -> torch.Tensor:
        pixels: torch.Tensor = self._processor(images=images, return_tensors="pt").pixel_values
        return pixels


def frames_of(clip: Clip) -> list[Image.Image]:
    """Evenly spread frames, first and last included, decoded in order. Pure."""
    with av.open(io.BytesIO(clip.content)) as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        wanted = np.linspace(0, stream.frames - 1, clip.num_frames).round().astype(int)
        chosen = set(wanted.tolist())
        return [
            frame.to_image()
            for number, frame in enumerate(container.decode(video=0))
            if number in chosen
        ]


class TransformersLane:
    """Programs one after the other, questions one by one or some programs' in one batch.

    Args:
        name: as in records.
        reference: the model.
        batch_programs: programs whose questions go into one batch; 0: each question alone.
        most_programs: only the first so many are run; None: all.
    """

    def __init__(
        self,
        name: str,
        reference: Reference,
        *,
        batch_programs: int = 0,
        most_programs: int | None = None,
    ) -> None:
        self.name, self.most_programs = name, most_programs
        self._reference, self._batch_programs = reference, batch_programs

    def run(self, programs: Sequence[Program]) -> Done:
        """All programs once, from nothing."""
        answers: dict[str, tuple[int, ...]] = {}
        asked: list[Ask] = []
        watch, start = Watch.start(), time.perf_counter()
        step = max(1, self._batch_programs)
        for first in range(0, len(programs), step):
            together = programs[first : first + step]
            while asks := [ask for one in together for ask in one.next_asks(answers)]:
                asked += asks
                for batch in [asks] if self._batch_programs else [[ask] for ask in asks]:
                    answered = self._reference.answer(batch)
                    answers |= {a.ask_id: row for a, row in zip(batch, answered, strict=True)}
        return Done(
            time.perf_counter() - start,
            answers,
            watch.elsewhere_cores(),
            sum(len(self._reference.token_ids(ask)) + ask.num_answer - 1 for ask in asked),
            sum(ask.num_views for ask in asked),
        )
