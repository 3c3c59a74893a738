"""Worker of vLLM's CPU build, prefix caching on.

Options go to `vllm.LLM` as they are, over float32, 4,096 tokens of context and 64 sequences at
once; `kv_gib` is the memory for KV in GiB (2). A picture's place in a prompt is one token; vLLM
puts the picture's own number there.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.engines.serve_loop import Command, answer_of, serve

_KV_GIB = 2
_SETTINGS = {
    "dtype": "float32",
    "enable_prefix_caching": True,
    "max_model_len": 4096,
    "max_num_seqs": 64,
    "seed": 0,
}


class Vllm:
    """See `serve_loop.Engine`."""

    def __init__(self) -> None:
        self._llm: Any = None
        self._image_token_id: int | None = None
        self._num_asked = 0

    def load(self, model: Path, threads: int, options: Mapping[str, Any]) -> str:
        """See `serve_loop.Engine`."""
        # vLLM reads these when it is imported, here and in the processes that it starts
        os.environ.update(_variables(threads, options))  # noqa: TID251
        import vllm  # noqa: PLC0415

        settings = {**_SETTINGS, **{k: v for k, v in options.items() if k != "kv_gib"}}
        self._llm = vllm.LLM(model=str(model), disable_log_stats=True, **settings)
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        self._image_token_id = config.get("image_token_index", config.get("image_token_id"))
        return str(vllm.__version__)

    def run(self, jobs: Sequence[Mapping[str, Any]], *, at_once: bool) -> list[dict[str, Any]]:
        """See `serve_loop.Engine`."""
        if not at_once:
            return [self._together([job])[0] for job in jobs]
        return self._together(jobs)

    def forget(self) -> None:
        """See `serve_loop.Engine`."""
        self._llm.reset_mm_cache()
        self._llm.llm_engine.reset_encoder_cache()
        if not self._llm.reset_prefix_cache():
            message = "the prefix cache was not emptied"
            raise RuntimeError(message)

    def close(self) -> None:
        """See `serve_loop.Engine`."""
        llm, self._llm = self._llm, None
        if llm is not None:
            llm.llm_engine.engine_core.shutdown()

    def server(self, model: Path, threads: int, options: Mapping[str, Any]) -> Command:
        """See `serve_loop.Engine`."""
        settings = {**_SETTINGS, **{k: v for k, v in options.items() if k != "kv_gib"}}
        words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        words += ["--model", str(model), "--host", "127.0.0.1", "--port", "{port}"]
        for name, value in settings.items():
            flag = f"--{name.replace('_', '-')}"
            words += [flag] if value is True else [flag, str(value)]
        return Command(words, _variables(threads, options), ready="/health")

    def _together(self, jobs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Hand jobs over together and step the engine until all are answered."""
        from vllm import SamplingParams  # noqa: PLC0415

        engine = self._llm.llm_engine
        start = time.perf_counter()
        asked: dict[str, Mapping[str, Any]] = {}
        for job in jobs:
            sampling = SamplingParams(
                temperature=0.0, max_tokens=job["max_tokens"], ignore_eos=True
            )
            self._num_asked += 1
            asked[f"{self._num_asked}"] = job
            engine.add_request(f"{self._num_asked}", self._prompt(job), sampling)
        first: dict[str, float] = {}
        found: dict[str, Any] = {}
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.outputs[0].token_ids:
                    first.setdefault(output.request_id, time.perf_counter() - start)
                if output.finished:
                    found[output.request_id] = output
        return [_answer(job, found[name], first.get(name)) for name, job in asked.items()]

    def _prompt(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """A prompt in vLLM's form, with BOS if the model has one. Opens its picture."""
        if job["video"] is not None:
            message = "clips are not given to this engine"
            raise ValueError(message)
        tokenizer = self._llm.get_tokenizer()
        ids = job["token_ids"]
        if ids is None:
            ids = tokenizer.encode(job["text"], add_special_tokens=False)
        head = tokenizer.encode("")
        if job["image"] is None:
            return {"prompt_token_ids": [*head, *ids]}
        from PIL import Image  # noqa: PLC0415

        picture = Image.open(job["image"]).convert("RGB")
        return {
            "prompt_token_ids": [*head, self._image_token_id, *ids],
            "multi_modal_data": {"image": picture},
        }


def _answer(job: Mapping[str, Any], output: Any, first_token_s: float | None) -> dict[str, Any]:  # noqa: ANN401
    return answer_of(
        job,
        output.outputs[0].token_ids,
        output.outputs[0].text,
        first_token_s=first_token_s,
        num_prompt_tokens=len(output.prompt_token_ids),
    )


def _variables(threads: int, options: Mapping[str, Any]) -> dict[str, str]:
    """Without the binding it would leave a core to its front end and use one thread. Pure."""
    openmp = Path(sys.prefix) / "lib" / "libiomp5.so"
    return {
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}" if threads > 1 else "0",
        "VLLM_CPU_KVCACHE_SPACE": str(options.get("kv_gib", _KV_GIB)),
        "VLLM_NO_USAGE_STATS": "1",
        **({"LD_PRELOAD": str(openmp)} if openmp.is_file() else {}),
    }


if __name__ == "__main__":
    serve(Vllm())
