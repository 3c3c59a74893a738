"""A `core.Client` without a model: it answers with what the last turn said, byte by byte.

A token is a byte; 256 begins a prompt, 257 ends an answer, 258 is a quarter of a picture.
Nothing runs in the background: a ticket moves on while somebody reads it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from mmserve.core import (
    Aborted,
    BytesSource,
    CacheUse,
    Finish,
    FrameReport,
    ImagePart,
    MediaRefused,
    MmserveError,
    ModelInfo,
    Output,
    Part,
    PromptLook,
    PromptReport,
    RawPart,
    Release,
    Request,
    SamplingParams,
    SpanLook,
    TextPart,
    Timing,
    TokenLogprob,
    TokensPart,
    Turn,
    Usage,
    VideoPart,
    series_key,
)

__all__ = ["BOS", "EOS", "IMAGE", "EchoClient", "EchoTicket"]

BOS, EOS, IMAGE = 256, 257, 258
TOKENS_PER_PICTURE = 4

MODEL = ModelInfo(
    name="echo",
    family="echo",
    path="/models/echo",
    context_length=4096,
    vocab_size=300,
    eos_token_ids=(EOS,),
    bos_token_id=BOS,
    image_token_id=IMAGE,
    num_slots=4096,
    kv_bytes_per_token=1,
    feature_bytes_per_token=1,
    fingerprint=bytes(16),
)


def piece(token_id: int) -> bytes:
    """A token's bytes."""
    names = {BOS: b"<s>", EOS: b"</s>", IMAGE: b"<echo_image>"}
    return bytes([token_id]) if token_id < BOS else names.get(token_id, b"?")


def score(token_id: int) -> float:
    """A token's log-probability, the same everywhere."""
    return -(1 + token_id % 7) / 8


def entry(token_id: int, top: int, *, has_logprob: bool = True) -> TokenLogprob:
    """What is reported of a token."""
    if not has_logprob:
        return TokenLogprob(token_id, None, piece(token_id))
    best = tuple((k, score(k), piece(k)) for k in range(top))
    return TokenLogprob(token_id, score(token_id), piece(token_id), best)


@dataclass
class EchoClient:
    """Remembers requests; `answers`, `refusals`, `failures` by prompt text change its ways."""

    pace_s: float = 0.0
    answers: dict[str, str] = field(default_factory=dict)
    refusals: dict[str, MmserveError] = field(default_factory=dict)
    failures: dict[str, tuple[int, MmserveError]] = field(default_factory=dict)
    model: ModelInfo = MODEL
    requests: list[Request] = field(default_factory=list)
    tickets: list[EchoTicket] = field(default_factory=list)
    prepared: list[tuple[ImagePart | VideoPart, str, str]] = field(default_factory=list)
    held: list[tuple[ImagePart | VideoPart, str, int]] = field(default_factory=list)
    released: list[tuple[ImagePart | VideoPart, str, int, int]] = field(default_factory=list)
    is_broken: bool = False
    is_busy: bool = False
    recent: tuple[float, float, float] = (400, 200, 300)

    def submit(self, request: Request) -> EchoTicket:
        """A ticket that answers with the last text of the request."""
        ticket = EchoTicket(self, request)
        self.requests.append(request)
        self.tickets.append(ticket)
        return ticket

    def prepare(
        self, part: ImagePart | VideoPart, *, cache_salt: str = "", client: str = ""
    ) -> None:
        """Remember a hint, with its salt and client."""
        self.prepared.append((part, cache_salt, client))

    def hold(self, part: ImagePart | VideoPart, *, cache_salt: str = "") -> Release:
        """Remember what is held, after how many requests, and after how many no more."""
        held = (part, cache_salt, len(self.requests))
        self.held.append(held)
        return lambda: self.released.append((*held, len(self.requests)))

    def tokenize(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Bytes of the text."""
        return [BOS] * add_special_tokens + list(text.encode())

    def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of bytes."""
        kept = [t for t in token_ids if t < BOS or not skip_special_tokens]
        return b"".join(map(piece, kept)).decode("utf-8", "replace")

    def flush_cache(self, timeout_s: float = 0.0) -> bool:
        """False while `is_busy`."""
        return not self.is_busy

    def counters(self) -> dict[str, float]:
        """Running requests, and ends by reason."""
        if self.is_broken:
            raise MmserveError("the loop has stopped")
        ends = [reason for ticket in self.tickets for reason in ticket.ends.values()]
        counts = {f'finished_total{{reason="{r}"}}': float(ends.count(r)) for r in set(ends)}
        running = sum(ticket.is_running for ticket in self.tickets)
        names = ("prompt_tokens", "hit_tokens", "optimal_hit_tokens")
        recent = {f"recent_{name}": n for name, n in zip(names, self.recent, strict=True)}
        settings = series_key("sched_info", policy="fcfs", eviction="lru", fairness="off")
        return {"running": float(running), "steps_total": 7.0, settings: 1, **counts, **recent}

    def reset(self) -> None:
        """Forget everything, answer as at first."""
        fresh = EchoClient()
        for name, value in vars(fresh).items():
            setattr(self, name, value)

    def render(self, request: Request) -> PromptLook:
        """The prompt's ids; a picture is a span of four, a clip one of two frames."""
        ticket = EchoTicket(self, request)
        report = ticket.report()
        starts = [at for at, token_id in enumerate(report.token_ids) if token_id == IMAGE]
        media = [p for p in _flat(request.parts) if isinstance(p, ImagePart | VideoPart)]
        spans = (
            SpanLook(
                identity=f"{number:032x}",
                kind="image" if isinstance(part, ImagePart) else "video",
                start=starts[number * TOKENS_PER_PICTURE],
                num_tokens=TOKENS_PER_PICTURE,
                width=8,
                height=6,
                timestamps_s=() if isinstance(part, ImagePart) else (0.0, 0.5),
                pictures=(b"jpeg",) if isinstance(part, ImagePart) else (b"one", b"two"),
            )
            for number, part in enumerate(media)
        )
        return PromptLook(token_ids=report.token_ids, spans=tuple(spans), clips=report.clips)

    def drawing(self, room: str, form: Literal["text", "svg", "json"] = "text") -> str:
        """The room and the form; `is_broken` breaks this too."""
        if self.is_broken:
            raise MmserveError("the loop has stopped")
        return json.dumps({"nodes": []}) if form == "json" else f"{room} as {form}"


class EchoTicket:
    """One request of an `EchoClient`."""

    def __init__(self, client: EchoClient, request: Request) -> None:
        self.request_id = request.request_id
        self.is_cancelled = False
        self.ends: dict[int, str] = {}
        self._client = client
        self._request = request
        self.said = "".join(_texts(request.parts[-2:]))

    @property
    def is_running(self) -> bool:
        """Whether a sequence has not ended."""
        is_refused = self.said in self._client.refusals
        return not is_refused and len(self.ends) < self._request.num_sequences

    def report(self, timeout_s: float | None = None) -> PromptReport:
        """The prompt's ids, or the refusal."""
        self._check()
        clips = [part for part in _flat(self._request.parts) if isinstance(part, VideoPart)]
        frames = tuple(FrameReport((0.0, 0.5)) for _ in clips)
        options = tuple(tuple(text.encode()) for text in self._request.options)
        return PromptReport(tuple(self._prompt_ids()), frames, options)

    async def report_async(self) -> PromptReport:
        """As `report`."""
        await asyncio.sleep(self._client.pace_s)
        return self.report()

    def outputs(self) -> Iterator[Output]:
        """One byte at a time."""
        self._check()
        for output in self._outputs():
            time.sleep(self._client.pace_s)
            yield output

    async def outputs_async(self) -> AsyncIterator[Output]:
        """As `outputs`."""
        self._check()
        for output in self._outputs():
            await asyncio.sleep(self._client.pace_s)
            yield output

    def cancel(self) -> None:
        """The next output is the end."""
        self.is_cancelled = True
        for index in range(self._request.num_sequences):
            self.ends.setdefault(index, "abort")

    def _check(self) -> None:
        if self.said in self._client.refusals:
            raise self._client.refusals[self.said]
        for part in _flat(self._request.parts):
            if isinstance(part, ImagePart) and part.source == BytesSource(b"bad"):
                raise MediaRefused("picture 1 cannot be read", reason="undecodable")
        if self.is_cancelled and not self.ends:
            raise Aborted("cancelled")

    def _prompt_ids(self) -> list[int]:
        ids = [] if self._request.add_bos == "never" else [BOS]
        for part in self._request.parts:
            if isinstance(part, Turn):
                ids += list(f"[{part.role}]".encode())
                ids += [token_id for inner in part.parts for token_id in _ids(inner)]
            else:
                ids += _ids(part)
        return ids

    def _outputs(self) -> Iterator[Output]:
        params = self._request.sampling
        answer, matched = self._answer(params)
        ids = list(answer.encode())
        limit = len(ids) if params.max_new_tokens is None else params.max_new_tokens
        is_cut = limit < len(ids) or limit == 0
        ids = ids[:limit]
        fail_at, error = self._client.failures.get(self.said, (-1, None))
        scores = self._prompt_logprobs(params)
        for position in range(len(ids) + 1):
            is_last = self.is_cancelled or position == fail_at
            for index in range(params.n):
                if is_last and position != fail_at:
                    yield self._end(index, position, Finish("abort"))
                elif position == fail_at and error is not None:
                    yield self._end(index, position, Finish("error", error=error))
                elif position < len(ids):
                    yield self._token(index, ids, position, scores if position == 0 else None)
                else:
                    reason = Finish("length") if is_cut else Finish("stop", matched or EOS)
                    extra = (entry(ids[-1] if ids else 65, params.top_logprobs),)
                    is_scored = params.return_logprobs and not ids
                    yield self._end(index, position, reason, extra if is_scored else (), scores)
            if is_last:
                return
        for index, option in enumerate(self._request.options, start=1):
            told = tuple(entry(token_id, 0) for token_id in option.encode())
            yield self._end(index, 0, Finish("length"), scores=told)

    def _answer(self, params: SamplingParams) -> tuple[str, str | None]:
        text = self._client.answers.get(self.said, self.said)
        places = [(text.index(stop), stop) for stop in params.stop if stop in text]
        if not places:
            return text, None
        place, stop = min(places)
        return text[:place], stop

    def _prompt_logprobs(self, params: SamplingParams) -> tuple[TokenLogprob, ...] | None:
        start = params.prompt_logprobs_from
        if start is None:
            return None
        return tuple(
            entry(token_id, params.top_logprobs, has_logprob=position > 0 and token_id != IMAGE)
            for position, token_id in enumerate(self._prompt_ids())
            if position >= start
        )

    def _token(
        self,
        index: int,
        ids: list[int],
        position: int,
        scores: tuple[TokenLogprob, ...] | None,
    ) -> Output:
        text = bytes(ids[: position + 1]).decode("utf-8", "ignore")
        before = bytes(ids[:position]).decode("utf-8", "ignore")
        params = self._request.sampling
        return Output(
            self.request_id,
            index,
            text[len(before) :],
            (ids[position],),
            self._usage(position + 1),
            (entry(ids[position], params.top_logprobs),) if params.return_logprobs else (),
            scores,
        )

    def _end(
        self,
        index: int,
        num_tokens: int,
        finish: Finish,
        logprobs: tuple[TokenLogprob, ...] = (),
        scores: tuple[TokenLogprob, ...] | None = None,
    ) -> Output:
        self.ends.setdefault(index, finish.reason)
        return Output(
            self.request_id,
            index,
            "",
            (),
            self._usage(num_tokens),
            logprobs,
            None if num_tokens else scores,
            finish,
            Timing(prefill=1.5, total=2.5),
        )

    def _usage(self, num_tokens: int) -> Usage:
        ids = self._prompt_ids()
        pictures = ids.count(IMAGE)
        text = len(ids) - pictures
        uses = (
            CacheUse("text", "hit", 1),
            CacheUse("text", "never_seen", text - 1),
            CacheUse("image", "evicted", pictures),
        )
        return Usage(
            len(ids),
            num_tokens,
            image_tokens=pictures,
            cached_tokens=1,
            cached_text_tokens=1,
            cache=tuple(use for use in uses if use.num_tokens),
        )


def _flat(parts: Sequence[Part]) -> Iterator[Part]:
    for part in parts:
        yield from part.parts if isinstance(part, Turn) else (part,)


def _texts(parts: Sequence[Part]) -> Iterator[str]:
    for part in _flat(parts):
        if isinstance(part, TextPart | RawPart):
            yield part.text
        elif isinstance(part, TokensPart):
            yield bytes(t for t in part.token_ids if t < BOS).decode("utf-8", "replace")


def _ids(part: Part) -> list[int]:
    if isinstance(part, TextPart | RawPart):
        return list(part.text.encode())
    if isinstance(part, TokensPart):
        return list(part.token_ids)
    return [IMAGE] * TOKENS_PER_PICTURE
