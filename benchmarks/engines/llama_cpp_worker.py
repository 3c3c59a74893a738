"""Worker of llama.cpp through llama-cpp-python: one answer at a time, the last KV kept.

The model is a folder with `model.gguf` and, for pictures, `tower.gguf`. Texts take the
library's own `generate`, which goes on from the prefix that the last prompt shares. Pictures go
through llama.cpp's mtmd, and the KV of the last picture is kept for the next question about it;
the library's own chat handler would compute it again. Options go to `Llama` as they are, over a
context of 4,096 tokens in batches of 512, but for "use_extra_bufts": whether weights are packed
anew for the processor is the model's setting, which `Llama` does not take.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import llama_cpp
import numpy as np
from llama_cpp import mtmd_cpp

from benchmarks.engines.serve_loop import Command, answer_of, serve

_SETTINGS = {"n_ctx": 4096, "n_batch": 512}
_SEQUENCE = 0
_YES, _NO = True, False  # the C interface takes flags by position


class LlamaCpp:
    """See `serve_loop.Engine`."""

    def __init__(self) -> None:
        self._llama: Any = None
        self._tower: Any = None
        self._kept: tuple[str, int] | None = None
        """The picture whose KV is there, and the position behind it."""

    def load(self, model: Path, threads: int, options: Mapping[str, Any]) -> str:
        """See `serve_loop.Engine`."""
        given = {**_SETTINGS, **options}
        defaults = llama_cpp.llama_model_default_params()
        is_packed = given.pop("use_extra_bufts", defaults.use_extra_bufts)
        defaults.use_extra_bufts = is_packed
        with mock.patch("llama_cpp.llama_cpp.llama_model_default_params", lambda: defaults):
            self._llama = llama_cpp.Llama(
                str(model / "model.gguf"),
                n_threads=threads,
                n_threads_batch=threads,
                verbose=False,
                **given,
            )
        tower = model / "tower.gguf"
        if tower.is_file():
            settings = mtmd_cpp.mtmd_context_params_default()
            settings.use_gpu = False
            settings.n_threads = threads
            settings.print_timings = False
            self._tower = mtmd_cpp.mtmd_init_from_file(
                str(tower).encode(), self._llama.model, settings
            )
            if self._tower is None:
                message = f"{tower.name} was not read; the log says why"
                raise ValueError(message)
        return importlib.metadata.version("llama-cpp-python")

    def run(self, jobs: Sequence[Mapping[str, Any]], *, at_once: bool) -> list[dict[str, Any]]:
        """See `serve_loop.Engine`; the library answers one at a time in any case."""
        start = time.perf_counter()
        return [self._answer(job, start if at_once else time.perf_counter()) for job in jobs]

    def forget(self) -> None:
        """See `serve_loop.Engine`."""
        self._llama.reset()
        self._llama._ctx.kv_cache_clear()
        self._kept = None

    def close(self) -> None:
        """See `serve_loop.Engine`."""
        tower, self._tower = self._tower, None
        if tower is not None:
            mtmd_cpp.mtmd_free(tower)
        llama, self._llama = self._llama, None
        if llama is not None:
            llama.close()
        self._kept = None

    def server(self, model: Path, threads: int, options: Mapping[str, Any]) -> Command:
        """See `serve_loop.Engine`."""
        settings = {
            "model": model / "model.gguf",
            "host": "127.0.0.1",
            "port": "{port}",
            "n_threads": threads,
            "n_threads_batch": threads,
            **_SETTINGS,
            **options,
        }
        if (model / "tower.gguf").is_file():
            settings |= {"clip_model_path": model / "tower.gguf", "chat_format": "llava-1-5"}
        words = [sys.executable, "-m", "llama_cpp.server"]
        for name, value in settings.items():
            words += [f"--{name}", str(value)]
        return Command(words)

    def _answer(self, job: Mapping[str, Any], began: float) -> dict[str, Any]:
        if job["video"] is not None:
            message = "clips are not given to this engine"
            raise ValueError(message)
        if job["image"] is None:
            num_prompt_tokens, tokens = self._from_text(job)
        else:
            num_prompt_tokens, tokens = self._from_picture(job)
        found: list[int] = []
        first_token_s = None
        for token in tokens:
            if first_token_s is None:
                first_token_s = time.perf_counter() - began
            found.append(int(token))
            if len(found) == job["max_tokens"]:
                break
        text = self._llama.detokenize(found).decode("utf-8", errors="replace")
        return answer_of(
            job, found, text, first_token_s=first_token_s, num_prompt_tokens=num_prompt_tokens
        )

    def _from_text(self, job: Mapping[str, Any]) -> tuple[int, Iterator[int]]:
        """The number of a prompt's tokens, and greedy tokens without an end."""
        llama = self._llama
        if job["token_ids"] is None:
            ids = llama.tokenize(job["text"].encode(), add_bos=True, special=True)
        else:
            ids = [*llama.tokenize(b"", add_bos=True), *job["token_ids"]]
        if self._kept is not None:
            self.forget()  # the library does not know of what a picture left behind
        return len(ids), llama.generate(ids, temp=0.0)

    def _from_picture(self, job: Mapping[str, Any]) -> tuple[int, Iterator[int]]:
        """As `_from_text`. Pieces are BOS, the picture, and the text, in that order."""
        library, memory = mtmd_cpp, self._llama._ctx
        if job["token_ids"] is not None and not job["text"]:
            message = "pictures need the text, not ids alone"
            raise ValueError(message)
        bitmap = library.mtmd_helper_bitmap_init_from_file(
            self._tower, job["image"].encode(), _NO
        )
        pieces = library.mtmd_input_chunks_init()
        try:
            self._split(job["text"], bitmap, pieces)
            num_pieces = library.mtmd_input_chunks_size(pieces)
            first, place = 0, 0
            if self._kept is not None and self._kept[0] == job["image"]:
                first, place = num_pieces - 1, self._kept[1]
                memory.kv_cache_seq_rm(_SEQUENCE, place, -1)
            else:
                self.forget()
            for number in range(first, num_pieces):
                if number == num_pieces - 1:
                    self._kept = job["image"], place
                place = self._compute(library.mtmd_input_chunks_get(pieces, number), place)
            num_prompt_tokens = int(library.mtmd_helper_get_n_tokens(pieces))
        finally:
            library.mtmd_input_chunks_free(pieces)
            library.mtmd_bitmap_free(bitmap)
        return num_prompt_tokens, self._greedy()

    def _split(self, text: str, bitmap: Any, pieces: Any) -> None:  # noqa: ANN401  handles
        marked = mtmd_cpp.mtmd_default_marker() + text.encode()
        prompt = mtmd_cpp.mtmd_input_text()
        prompt.text = marked
        prompt.add_special = True
        prompt.parse_special = True
        prompt.text_len = len(marked)
        bitmaps = (mtmd_cpp.mtmd_bitmap_p_ctypes * 1)(bitmap)
        status = mtmd_cpp.mtmd_tokenize(
            self._tower, pieces, ctypes.byref(prompt), bitmaps, len(bitmaps)
        )
        if status:
            message = f"the prompt was not split: status {status}"
            raise RuntimeError(message)

    def _compute(self, piece: Any, place: int) -> int:  # noqa: ANN401  a handle
        """Encode and prefill one piece at `place`; the position behind it."""
        behind = llama_cpp.llama_pos(0)
        status = mtmd_cpp.mtmd_helper_eval_chunk_single(
            self._tower,
            self._llama.ctx,
            piece,
            llama_cpp.llama_pos(place),
            llama_cpp.llama_seq_id(_SEQUENCE),
            self._llama.n_batch,
            _YES,
            ctypes.byref(behind),
        )
        if status:
            message = f"a piece of the prompt was not computed: status {status}"
            raise RuntimeError(message)
        return int(behind.value)

    def _greedy(self) -> Iterator[int]:
        """The likeliest token after what was computed last, and so on without an end."""
        context, size = self._llama.ctx, self._llama.n_vocab()
        while True:
            logits = np.ctypeslib.as_array(
                llama_cpp.llama_get_logits_ith(context, -1), shape=(size,)
            )
            token = int(logits.argmax())
            yield token
            one = (llama_cpp.llama_token * 1)(token)
            status = llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(one, 1))
            if status:
                message = f"a token was not computed: status {status}"
                raise RuntimeError(message)


if __name__ == "__main__":
    serve(LlamaCpp())
