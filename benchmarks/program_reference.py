"""transformers as a `Client`, so that the language runs the same programs on it.

    Request --intake--> token ids, pixels, grammar     mmserve's own, so prompts are equal
            --model.generate--> tokens --> text        one call at a time, nothing kept between
            --forward passes--> the same under a grammar, one for each token

An option of a `select` is one forward pass over prompt and option. A call for no token computes
nothing here, so the prompt's own call of a `select` costs nothing, and forks make none.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from mmserve.core import (
    Finish,
    Matcher,
    ModelInfo,
    Output,
    PromptReport,
    Request,
    TokenLogprob,
    Usage,
)
from mmserve.engine.intake import Prepared
from mmserve.engine.load import Parts
from mmserve.lang import ClientBackend
from mmserve.lang.backends.abilities import Abilities
from mmserve.prompt import Detokenizer

__all__ = ["TransformersBackend", "TransformersClient"]


@dataclass(eq=False)
class Writing:
    """One greedy answer while `generate` writes it, which it tells when to end.

    `is_done` once a stop text or an end token has ended it.
    """

    num_prompt: int
    text: Detokenizer
    end_ids: frozenset[int]
    pieces: list[str] = field(default_factory=list)
    finish: Finish = field(default_factory=lambda: Finish("length"))
    is_done: bool = False

    def note(self, ids: torch.Tensor, _scores: object) -> torch.Tensor:
        """Take in the last of `ids` [1, T]; bool [1], whether to stop. Changes: all."""
        token_id = int(ids[0, -1])
        if token_id in self.end_ids:
            self._end(token_id)
            return torch.tensor([True])
        self.pieces.append(self.text.push(token_id))
        if self.text.match is not None:
            self._end(self.text.match)
        return torch.tensor([self.is_done])

    def _end(self, matched: str | int | None) -> None:
        self.is_done, self.finish = True, Finish("stop", matched)


@dataclass(eq=False)
class Forced:
    """One greedy answer under a grammar: forced text in canonical tokens, one pass a token.

    So it has the tokens that mmserve gives it, and costs what masks alone cost.
    """

    model: Any
    matcher: Matcher
    end_ids: tuple[int, ...]
    most: int
    token_ids: list[int] = field(default_factory=list)
    num_settled: int = 0
    num_kept: int = 0
    num_drawn: int = 0
    finish: Finish | None = None

    def write(self, inputs: Mapping[str, torch.Tensor]) -> None:
        """The whole answer. Changes: the tokens, the finish."""
        cache = transformers.DynamicCache()
        num_prompt = inputs["input_ids"].shape[1]
        logits = self._pass(cache, **inputs)
        self._jump()
        while self.finish is None:
            num_known = num_prompt + len(self.token_ids)
            num_gone = cache.get_seq_length() - num_prompt - self.num_kept
            if num_gone > 0:
                cache.crop(-num_gone)
            while cache.get_seq_length() < num_known:
                token_id = self.token_ids[cache.get_seq_length() - num_prompt]
                logits = self._pass(cache, input_ids=torch.tensor([[token_id]]))
            self._draw(logits)

    def _pass(self, cache: Any, **inputs: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
        has_name = "cache" in inspect.signature(self.model.forward).parameters
        named = {"cache" if has_name else "past_key_values": cache}  # as the release calls it
        out = self.model(**inputs, **named, use_cache=True, logits_to_keep=1)
        logits: torch.Tensor = out.logits[0, -1]
        return logits

    def _draw(self, logits: torch.Tensor) -> None:
        bits = self.matcher.allowed().view(np.uint8)
        allowed = np.unpackbits(bits, bitorder="little")[: len(logits)]
        token_id = int(logits.masked_fill(torch.from_numpy(allowed == 0), -torch.inf).argmax())
        self.num_kept = len(self.token_ids)
        self.token_ids.append(token_id)
        self.num_drawn += 1
        if token_id in self.end_ids:
            self.finish = Finish("stop", token_id)
            return
        self.matcher.accept(token_id)
        if self.matcher.is_finished:
            self.finish = Finish("stop")
        elif len(self.token_ids) >= self.most:
            self.finish = Finish("length")
        else:
            self._jump()

    def _jump(self) -> None:
        self.num_kept = len(self.token_ids)
        jump = self.matcher.jump(self.num_settled, self.most - self.num_settled)
        if jump is None:
            return
        self.num_kept -= jump.num_replaced
        self.matcher.rollback(jump.num_replaced)
        for token_id in jump.token_ids:
            self.matcher.accept(token_id)
        self.token_ids[self.num_kept :] = jump.token_ids
        self.num_settled = len(self.token_ids)
        if jump.is_end:
            self.finish = Finish("stop")
        elif self.num_settled >= self.most:
            self.finish = Finish("length")


class TransformersTicket:
    """A call that runs when its outputs are read. Implements `core.ports.Ticket`."""

    def __init__(self, client: TransformersClient, request: Request) -> None:
        self.request_id = request.request_id
        self._client = client
        self._prepared: Prepared = client.read(request)
        self._is_cancelled = False

    def report(self, timeout_s: float | None = None) -> PromptReport:  # noqa: ARG002  never waits
        """See `core.ports.Ticket`."""
        return self._prepared.report

    async def report_async(self) -> PromptReport:
        """See `core.ports.Ticket`."""
        return self.report()

    def outputs(self) -> Iterator[Output]:
        """The whole answer as one output; see `core.ports.Ticket`."""
        if self._is_cancelled:
            return
        prepared = self._prepared
        yield self._client.answer(prepared)
        for index, option in enumerate(prepared.options, start=1):
            yield replace(self._client.score(option, prepared.num_before), index=index)

    async def outputs_async(self) -> AsyncIterator[Output]:
        """See `core.ports.Ticket`; blocks."""
        for output in self.outputs():
            yield output

    def cancel(self) -> None:
        """A call that has not begun never does; see `core.ports.Ticket`."""
        self._is_cancelled = True


class TransformersClient:
    """Answers by `generate` and by forward passes. Implements `core.ports.Client`.

    Args:
        parts: rooms of an engine for the same model; its intake and media plane are used.
        directory: the checkpoint.

    Safe from any thread; calls wait for each other.
    """

    def __init__(self, parts: Parts, directory: Path) -> None:
        kind = transformers.AutoModelForImageTextToText
        self._model: Any = kind.from_pretrained(directory, dtype=torch.float32).eval()
        self._model.generation_config.eos_token_id = None  # `Writing` knows when to end
        self._parts = parts
        self._lock = threading.Lock()
        self.num_prompt_tokens = 0
        """Prompt tokens computed so far; nothing is ever cached."""
        self.num_generated = 0

    @property
    def model(self) -> ModelInfo:
        """Facts of the model served."""
        return self._parts.model

    def submit(self, request: Request) -> TransformersTicket:
        """Hand a request in; see `core.ports.Client`."""
        return TransformersTicket(self, request)

    def prepare(self, part: object, **_values: str) -> None:
        """Nothing begins early; see `core.ports.Client`."""

    def read(self, request: Request) -> Prepared:
        """Prompt, media and grammar as the engine makes them. Raises RequestRefused."""
        return self._parts.intake.prepare(request)

    def tokenize(self, text: str, *, add_special_tokens: bool = False) -> list[int]:  # noqa: ARG002
        """Token ids of template text, never with special ones; see `core.ports.Client`."""
        return self._parts.tokenizer.encode_template(text)

    def detokenize(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; see `core.ports.Client`."""
        return self._parts.tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def flush_cache(self, timeout_s: float = 0.0) -> bool:  # noqa: ARG002  nothing is cached
        """Nothing to forget."""
        return True

    def counters(self) -> dict[str, float]:
        """Tokens computed, under the engine's names."""
        return {
            "prompt_tokens_computed_total": self.num_prompt_tokens,
            "prompt_tokens_cached_total": 0,
            "generated_tokens_total": self.num_generated,
        }

    def answer(self, prepared: Prepared) -> Output:
        """The whole answer of one sequence. Blocks until the calls before it are done."""
        params = prepared.request.sampling
        if params.prompt_logprobs_from is not None:
            return self.score(prepared, params.prompt_logprobs_from)
        with self._lock, torch.inference_mode():
            if params.max_new_tokens == 0:
                return _output(prepared, finish=Finish("length"))
            return self._write(prepared)

    def score(self, prepared: Prepared, first: int) -> Output:
        """Log-probabilities of the prompt's tokens from position `first` on; first >= 1."""
        with self._lock, torch.inference_mode():
            return self._score(prepared, first)

    def _force(self, prepared: Prepared, matcher: Matcher) -> Output:
        """An answer under a grammar; the workloads give these no stop texts."""
        params = prepared.request.sampling
        forced = Forced(
            self._model, matcher, self.model.eos_token_ids, params.max_new_tokens or 0
        )
        forced.write(self._inputs(prepared))
        self.num_prompt_tokens += prepared.prompt.num_tokens
        self.num_generated += forced.num_drawn
        return _output(
            prepared,
            text=self._parts.tokenizer.decode(forced.token_ids),
            token_ids=tuple(forced.token_ids),
            finish=forced.finish,
        )

    def _write(self, prepared: Prepared) -> Output:
        if prepared.new_matcher is not None:
            return self._force(prepared, prepared.new_matcher())
        params, inputs = prepared.request.sampling, self._inputs(prepared)
        ends = () if params.ignore_eos else self.model.eos_token_ids
        writing = Writing(
            num_prompt=prepared.prompt.num_tokens,
            text=Detokenizer(
                self._parts.tokenizer,
                stop=params.stop,
                skip_special_tokens=params.skip_special_tokens,
            ),
            end_ids=frozenset({*ends, *params.stop_token_ids}),
        )
        tokens = self._model.generate(
            **inputs,
            attention_mask=torch.ones_like(inputs["input_ids"]),
            max_new_tokens=params.max_new_tokens,
            do_sample=False,
            stopping_criteria=transformers.StoppingCriteriaList([writing.note]),
        )
        token_ids = tuple(tokens[0, writing.num_prompt :].tolist())
        self.num_prompt_tokens += writing.num_prompt
        self.num_generated += len(token_ids)
        text = "".join((*writing.pieces, writing.text.flush()))
        return _output(prepared, text=text, token_ids=token_ids, finish=writing.finish)

    def _score(self, prepared: Prepared, first: int) -> Output:
        inputs = self._inputs(prepared)
        ids = inputs["input_ids"][0, first:]
        kept = self._model(**inputs, logits_to_keep=len(ids) + 1).logits[0, :-1]
        found = kept.log_softmax(-1).gather(1, ids[:, None])[:, 0]
        self.num_prompt_tokens += prepared.prompt.num_tokens
        piece = self._parts.tokenizer.piece
        scores = tuple(
            TokenLogprob(token_id, value, piece(token_id))
            for token_id, value in zip(ids.tolist(), found.tolist(), strict=True)
        )
        return _output(prepared, finish=Finish("length"), prompt_logprobs=scores)

    def _inputs(self, prepared: Prepared) -> dict[str, torch.Tensor]:
        inputs = {"input_ids": torch.from_numpy(prepared.prompt.token_ids)[None]}
        if prepared.items:
            pixels = self._pixels(prepared)
            spans = prepared.prompt.spans
            rows = np.stack([pixels[span.digest]["pixel_values"] for span in spans])
            inputs["pixel_values"] = torch.from_numpy(rows)
        return inputs

    def _pixels(self, prepared: Prepared) -> dict[bytes, dict[str, NDArray[Any]]]:
        """Inputs of the tower by digest, decoded now. Raises what decoding fails with."""
        plane = self._parts.plane
        found: dict[bytes, dict[str, NDArray[Any]]] = {}
        failures: list[Exception] = []
        is_ready = threading.Event()

        def take(digest: bytes, inputs: Any, error: Any, *_times: float) -> None:  # noqa: ANN401
            if error is not None:
                failures.append(error)
            found[digest] = inputs
            if len(found) == len(prepared.items):
                is_ready.set()

        if plane is not None:
            plane.request_pixels(list(prepared.items.values()), take)
            is_ready.wait()
        if failures:
            raise failures[0]
        return found


class TransformersBackend(ClientBackend):
    """The client as a backend of the language, which need not compute prefixes early."""

    @property
    def abilities(self) -> Abilities:
        """Everything but calls that compute a prefix early."""
        return replace(super().abilities, has_prefix_calls=False)


def _output(prepared: Prepared, **values: Any) -> Output:  # noqa: ANN401  fields of Output
    usage = Usage(
        prompt_tokens=prepared.prompt.num_tokens,
        completion_tokens=len(values.get("token_ids", ())),
    )
    request_id = prepared.request.request_id
    return Output(
        request_id=request_id,
        index=0,
        usage=usage,
        **{"text": "", "token_ids": (), **values},
    )
