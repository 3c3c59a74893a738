"""Worker of transformers: `generate`, greedy, with its own cache.

    python -m benchmarks.engines.transformers_worker            one job after the other
    python -m benchmarks.engines.transformers_worker --batched  rows of a padded batch

A batch holds all jobs about one picture, or texts of like length, in either case at most
`batch_rows` (an option, 16). Other options: `image_text` and `video_text`, what a prompt writes
in a picture's or a clip's place where that is more than the model's one token for it, and
`dtype`. Clips need the model's video processor, and that needs torchvision.
"""

from __future__ import annotations

import importlib.metadata
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image

from benchmarks.engines.serve_loop import answer_of, serve

_BATCH_ROWS = 16
_MEDIA = ("image", "video")


class Transformers:
    """See `serve_loop.Engine`."""

    def __init__(self, *, is_batched: bool) -> None:
        self._is_batched = is_batched
        self._options: Mapping[str, Any] = {}
        self._model: Any = None
        self._tokenizer: Any = None
        self._processor: Any = None

    def load(self, model: Path, threads: int, options: Mapping[str, Any]) -> str:
        """See `serve_loop.Engine`."""
        torch.set_num_threads(threads)
        self._options = options
        dtype = getattr(torch, options.get("dtype", "float32"))
        config = transformers.AutoConfig.from_pretrained(model)
        sees = hasattr(config, "vision_config")
        kind = (
            transformers.AutoModelForImageTextToText
            if sees
            else transformers.AutoModelForCausalLM
        )
        self._model = kind.from_pretrained(model, dtype=dtype).eval()
        self._model.generation_config = transformers.GenerationConfig(
            do_sample=False, pad_token_id=0, eos_token_id=None
        )
        if sees:
            self._processor = transformers.AutoProcessor.from_pretrained(model, backend="pil")
            self._tokenizer = self._processor.tokenizer
        else:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        return importlib.metadata.version("transformers")

    @torch.inference_mode()
    def run(self, jobs: Sequence[Mapping[str, Any]], *, at_once: bool) -> list[dict[str, Any]]:
        """See `serve_loop.Engine`; without --batched, `at_once` changes nothing."""
        answers: dict[str, dict[str, Any]] = {}
        start = time.perf_counter()
        prompts = [(job, self._tail(job)) for job in jobs]
        rows = int(self._options.get("batch_rows", _BATCH_ROWS)) if self._is_batched else 1
        for batch in _batches(prompts, rows if at_once else 1):
            began = start if at_once else time.perf_counter()
            answers |= {answer["id"]: answer for answer in self._generate(batch, began)}
        return [answers[job["id"]] for job in jobs]

    def forget(self) -> None:
        """See `serve_loop.Engine`; `generate` keeps nothing between calls."""

    def close(self) -> None:
        """See `serve_loop.Engine`."""
        self._model = self._tokenizer = self._processor = None

    def server(self, model: Path, threads: int, options: Mapping[str, Any]) -> None:
        """See `serve_loop.Engine`: its server is an engine of its own here."""

    def _tail(self, job: Mapping[str, Any]) -> list[int]:
        """Token ids of what follows the media. Pure."""
        if job["token_ids"] is not None:
            return list(job["token_ids"])
        ids: list[int] = self._tokenizer.encode(job["text"], add_special_tokens=False)
        return ids

    def _generate(
        self, batch: Sequence[tuple[Mapping[str, Any], list[int]]], began: float
    ) -> Iterator[dict[str, Any]]:
        heads = [self._head(job) for job, _ in batch]
        rows = [
            [*head.pop("input_ids")[0].tolist(), *tail]
            for head, (_, tail) in zip(heads, batch, strict=True)
        ]
        width = max(len(row) for row in rows)
        inputs = {
            "input_ids": torch.tensor([[0] * (width - len(row)) + row for row in rows]),
            "attention_mask": torch.tensor(
                [[0] * (width - len(row)) + [1] * len(row) for row in rows]
            ),
        }
        for name in heads[0]:
            inputs[name] = torch.cat([head[name] for head in heads])
        watch = _FirstToken()
        tokens = self._model.generate(
            **inputs,
            max_new_tokens=max(job["max_tokens"] for job, _ in batch),
            stopping_criteria=[watch],
        )
        for row, prompt, (job, _) in zip(tokens.tolist(), rows, batch, strict=True):
            found = row[width:][: job["max_tokens"]]
            text = self._tokenizer.decode(found, skip_special_tokens=True)
            yield answer_of(
                job,
                found,
                text,
                first_token_s=watch.seconds - began,
                num_prompt_tokens=len(prompt),
            )

    def _head(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Inputs of what stands in front of the text: BOS if the model has one, and media."""
        if job["image"] is None and job["video"] is None:
            empty = self._tokenizer.encode("")
            return {"input_ids": torch.tensor([empty], dtype=torch.long)}
        words, media = "", {}
        if job["image"] is not None:
            words += self._options.get("image_text", self._processor.image_token)
            media["images"] = [Image.open(job["image"]).convert("RGB")]
        if job["video"] is not None:
            words += self._options.get("video_text", self._processor.video_token)
            media["videos"] = [_frames(job["video"], job["num_frames"])]
            media["do_sample_frames"] = False
        head: dict[str, Any] = self._processor(text=words, return_tensors="pt", **media)
        return {name: value for name, value in head.items() if name != "attention_mask"}


class _FirstToken(transformers.StoppingCriteria):  # type: ignore[misc]
    """Notes when the first token is there, and never stops."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(
        self,
        input_ids: torch.Tensor,
        scores: Any,  # noqa: ANN401, ARG002  as transformers calls it
        **kwargs: Any,  # noqa: ANN401, ARG002
    ) -> torch.Tensor:
        self.seconds = self.seconds or time.perf_counter()
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def _batches(
    prompts: Sequence[tuple[Mapping[str, Any], list[int]]], num_rows: int
) -> Iterator[Sequence[tuple[Mapping[str, Any], list[int]]]]:
    """Jobs about the same media together, texts by length, at most `num_rows` each. Pure."""
    groups: dict[tuple[Any, ...], list[tuple[Mapping[str, Any], list[int]]]] = {}
    for job, tail in prompts:
        groups.setdefault(tuple(job[name] for name in _MEDIA), []).append((job, tail))
    for group in groups.values():
        # rows of like length waste least on padding; one by one keeps the order asked
        rows = sorted(group, key=lambda pair: len(pair[1])) if num_rows > 1 else group
        for first in range(0, len(rows), num_rows):
            yield rows[first : first + num_rows]


def _frames(path: str, num_frames: int | None) -> Any:  # noqa: ANN401  uint8 [F, H, W, 3]
    """`num_frames` frames of a clip, evenly spread with both ends, or all; one: the middle."""
    import av  # noqa: PLC0415  for clips alone
    import numpy as np  # noqa: PLC0415

    with av.open(path) as clip:
        num_stored = sum(packet.size > 0 for packet in clip.demux(video=0))
    count = num_stored if num_frames is None else min(num_frames, num_stored)
    gaps = max(count - 1, 1)
    places = {(2 * place * (num_stored - 1) + gaps) // (2 * gaps) for place in range(count)}
    if count == 1:
        places = {(num_stored - 1) // 2}
    with av.open(path) as clip:
        frames = enumerate(clip.decode(video=0))
        return np.stack(
            [frame.to_ndarray(format="rgb24") for i, frame in frames if i in places]
        )


if __name__ == "__main__":
    serve(Transformers(is_batched="--batched" in sys.argv[1:]))
