"""Worker of transformers' continuous batching: paged KV and shared prefixes, text only.

Runs go to its manager in this process; the server is `transformers serve` with
`--continuous-batching`. Options: `num_blocks` and `page_size` of its KV (256 pages of 32 tokens
a layer), `max_batch_tokens` (512), and `dtype`. On a CPU it would otherwise size its cache for
nearly all memory.
"""

from __future__ import annotations

import importlib.metadata
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.engines.serve_loop import Command, answer_of, serve

_PAGE_TOKENS = 32
_NUM_BLOCKS = 512
_BATCH_TOKENS = 512
_POLL_S = 1.0


class TransformersServe:
    """See `serve_loop.Engine`."""

    def __init__(self) -> None:
        self._options: Mapping[str, Any] = {}
        self._model: Any = None
        self._tokenizer: Any = None
        self._manager: Any = None

    def load(self, model: Path, threads: int, options: Mapping[str, Any]) -> str:
        """See `serve_loop.Engine`."""
        torch.set_num_threads(threads)
        self._options = options
        dtype = getattr(torch, options.get("dtype", "float32"))
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            model, dtype=dtype
        ).eval()
        self._start()
        return importlib.metadata.version("transformers")

    def run(self, jobs: Sequence[Mapping[str, Any]], *, at_once: bool) -> list[dict[str, Any]]:
        """See `serve_loop.Engine`."""
        if not at_once:
            return [self._together([job])[0] for job in jobs]
        return self._together(jobs)

    def forget(self) -> None:
        """See `serve_loop.Engine`: a new manager with an empty cache."""
        self._stop()
        self._start()

    def close(self) -> None:
        """See `serve_loop.Engine`."""
        self._stop()
        self._model = self._tokenizer = None

    def server(self, model: Path, threads: int, options: Mapping[str, Any]) -> Command:
        """See `serve_loop.Engine`."""
        program = Path(sys.executable).with_name("transformers")
        words = [str(program), "serve", str(model), "--continuous-batching", "--device", "cpu"]
        words += ["--dtype", options.get("dtype", "float32"), "--port", "{port}"]
        words += ["--cb-num-blocks", str(options.get("num_blocks", _NUM_BLOCKS))]
        words += ["--cb-block-size", str(options.get("page_size", _PAGE_TOKENS))]
        words += ["--cb-max-batch-tokens", str(options.get("max_batch_tokens", _BATCH_TOKENS))]
        words += ["--host", "127.0.0.1"]
        return Command(words, {"OMP_NUM_THREADS": str(threads)}, ready="/health")

    def _start(self) -> None:
        batching = transformers.ContinuousBatchingConfig(
            page_size=int(self._options.get("page_size", _PAGE_TOKENS)),
            num_blocks=int(self._options.get("num_blocks", _NUM_BLOCKS)),
            max_batch_tokens=int(self._options.get("max_batch_tokens", _BATCH_TOKENS)),
        )
        greedy = transformers.GenerationConfig(
            do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=16
        )
        self._manager = self._model.init_continuous_batching(
            generation_config=greedy, continuous_batching_config=batching
        )
        self._manager.start()

    def _stop(self) -> None:
        manager, self._manager = self._manager, None
        if manager is not None:
            manager.stop(block=True)
            manager.destroy()

    def _together(self, jobs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Hand jobs over together; those that share a prefix one behind the other."""
        prompts = {job["id"]: self._prompt(job) for job in jobs}
        start = time.perf_counter()
        for job in sorted(jobs, key=lambda job: prompts[job["id"]], reverse=True):
            self._manager.add_request(
                prompts[job["id"]],
                request_id=job["id"],
                max_new_tokens=job["max_tokens"],
                record_timestamps=True,
                eos_token_id=-1,
            )
        found: dict[str, Any] = {}
        while len(found) < len(jobs):
            result = self._manager.get_result(timeout=_POLL_S)
            if result is not None and result.is_finished():
                if result.error is not None:
                    raise RuntimeError(result.error)
                found[result.request_id] = result
            elif result is None and not self._manager.is_running():
                message = "the generation thread ended"
                raise RuntimeError(message)
        return [self._answer(job, found[job["id"]], start) for job in jobs]

    def _answer(self, job: Mapping[str, Any], result: Any, start: float) -> dict[str, Any]:  # noqa: ANN401
        tokens = result.generated_tokens
        stamps = result.timestamps
        return answer_of(
            job,
            tokens,
            self._tokenizer.decode(tokens, skip_special_tokens=True),
            first_token_s=stamps[0] - start if stamps else None,
            num_prompt_tokens=len(result.prompt_ids),
        )

    def _prompt(self, job: Mapping[str, Any]) -> list[int]:
        """Token ids of a prompt, with BOS if the model has one. Pure."""
        if job["image"] is not None or job["video"] is not None:
            message = "its continuous batching takes text only"
            raise ValueError(message)
        if job["token_ids"] is not None:
            return [*self._tokenizer.encode(""), *job["token_ids"]]
        ids: list[int] = self._tokenizer.encode(job["text"])
        return ids


if __name__ == "__main__":
    serve(TransformersServe())
