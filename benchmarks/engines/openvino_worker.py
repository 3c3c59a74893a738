"""Worker of OpenVINO GenAI: its continuous batching pipeline, prefix caching on.

`VLMPipeline` with a scheduler runs the same pipeline behind its calls, but gives no token ids.
Options: `kv_gib` (2) and `max_num_seqs` (64) of the scheduler; `properties` of the device, for
example {"KV_CACHE_PRECISION": "u8"}, over float32 for weights' products and for KV.

A picture's place in a prompt is written as the model's own tag. A model that sees takes text
and no ids, so that its jobs need a `text` that has the ids asked for. The pipeline ends the
line behind a picture by itself: texts that begin with a line's end are the same prompt in all
engines, others are one token longer here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai
from PIL import Image

from benchmarks.engines.serve_loop import answer_of, serve

_KV_GIB = 2
_NUM_SEQUENCES = 64
_TAG = "<image>"
_LINE_END = "\n"
_FINISHED = openvino_genai.GenerationStatus.FINISHED


class OpenVino:
    """See `serve_loop.Engine`."""

    def __init__(self) -> None:
        self._pipeline: Any = None
        self._tokenizer: Any = None
        self._sees = False
        self._picture_tokens = 0
        self._reload: tuple[Path, int, Mapping[str, Any]] | None = None
        self._num_asked = 0

    def load(self, model: Path, threads: int, options: Mapping[str, Any]) -> str:
        """See `serve_loop.Engine`."""
        self._reload = model, threads, options
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = True
        scheduler.cache_size = int(options.get("kv_gib", _KV_GIB))
        scheduler.max_num_seqs = int(options.get("max_num_seqs", _NUM_SEQUENCES))
        properties = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "KV_CACHE_PRECISION": "f32",
            **options.get("properties", {}),
        }
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            str(model), scheduler, "CPU", properties
        )
        self._tokenizer = self._pipeline.get_tokenizer()
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        self._sees = "vision_config" in config
        self._picture_tokens = int(config.get("image_seq_length", 0))
        return str(openvino_genai.__version__)

    def run(self, jobs: Sequence[Mapping[str, Any]], *, at_once: bool) -> list[dict[str, Any]]:
        """See `serve_loop.Engine`."""
        if not at_once:
            return [self._together([job])[0] for job in jobs]
        return self._together(jobs)

    def forget(self) -> None:
        """See `serve_loop.Engine`: the pipeline is made anew, as it cannot empty its cache."""
        reload = self._reload
        if reload is None:
            message = "load a model first"
            raise ValueError(message)
        self.close()
        self.load(*reload)

    def close(self) -> None:
        """See `serve_loop.Engine`."""
        self._pipeline = self._tokenizer = None

    def server(self, model: Path, threads: int, options: Mapping[str, Any]) -> None:
        """See `serve_loop.Engine`: its model server is no Python package."""

    def _together(self, jobs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Hand jobs over together and step the pipeline until all are answered."""
        pipeline = self._pipeline
        start = time.perf_counter()
        rows = [_Row(job, *self._ask(job)) for job in jobs]
        while pipeline.has_non_finished_requests():
            pipeline.step()
            now = time.perf_counter() - start
            for row in rows:
                row.read(now)
        return [row.answer(self._tokenizer) for row in rows]

    def _ask(self, job: Mapping[str, Any]) -> tuple[Any, int]:
        """Hand one job over; its handle and the number of its prompt's tokens."""
        if job["video"] is not None:
            message = "clips are not given to this engine"
            raise ValueError(message)
        greedy = openvino_genai.GenerationConfig()
        greedy.max_new_tokens = job["max_tokens"]
        greedy.ignore_eos = True
        greedy.do_sample = False
        greedy.apply_chat_template = False
        self._num_asked += 1
        if not self._sees:
            ids = self._ids(job)
            handle = self._pipeline.add_request(self._num_asked, openvino.Tensor(ids), greedy)
            return handle, ids.shape[1]
        prompt, pictures = job["text"], []
        num_prompt_tokens = self._ids({**job, "token_ids": None}).shape[1]
        if job["image"] is not None:
            # the pipeline puts a line's end of its own behind each picture
            num_prompt_tokens += self._picture_tokens + (not prompt.startswith(_LINE_END))
            prompt = _TAG + prompt.removeprefix(_LINE_END)
            pixels = np.array(Image.open(job["image"]).convert("RGB"))
            pictures.append(openvino.Tensor(pixels[None]))
        handle = self._pipeline.add_request(self._num_asked, prompt, pictures, greedy)
        return handle, num_prompt_tokens

    def _ids(self, job: Mapping[str, Any]) -> Any:  # noqa: ANN401  int64 [1, T]
        """Token ids of the text, behind BOS if the model has one. Pure."""
        if job["token_ids"] is None:
            return self._tokenizer.encode(job["text"]).input_ids.data.copy()
        head = self._tokenizer.encode("").input_ids.data
        return np.concatenate([head, np.array([job["token_ids"]], head.dtype)], axis=1)


class _Row:
    """A job under way: what has been read of its answer."""

    def __init__(self, job: Mapping[str, Any], handle: Any, num_prompt_tokens: int) -> None:  # noqa: ANN401
        self._job = job
        self._handle = handle
        self._num_prompt_tokens = num_prompt_tokens
        self._token_ids: list[int] = []
        self._first_token_s: float | None = None

    def read(self, now_s: float) -> None:
        """Take what is new. Changes: the tokens, the time of the first."""
        while self._handle.can_read():
            for output in self._handle.read().values():
                self._token_ids += output.generated_ids
                if self._first_token_s is None:
                    self._first_token_s = now_s

    def answer(self, tokenizer: Any) -> dict[str, Any]:  # noqa: ANN401
        """The whole answer. Raises RuntimeError if there is none, for want of memory."""
        status = self._handle.get_status()
        if status != _FINISHED:
            message = f"the answer ended with status {status}"
            raise RuntimeError(message)
        return answer_of(
            self._job,
            self._token_ids,
            tokenizer.decode(self._token_ids),
            first_token_s=self._first_token_s,
            num_prompt_tokens=self._num_prompt_tokens,
        )


if __name__ == "__main__":
    serve(OpenVino())
