"""A `Client` without a model: it answers by a rule, scores by arithmetic, and remembers.

    prompt "<s>[user]What?[image:9f3c][/user][assistant]"     one id per byte, picture or marker
    answer = rule(prompt, request)                            one token per byte

Log-probabilities are a fixed function of the ids before a token (`fake_logprob`), so a test can
compute any score itself. Nothing is kept but the ids of prompts already seen, to count hits.
"""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from mmserve.constrained import compile_stops
from mmserve.core import (
    BadRequest,
    BytesSource,
    Finish,
    FramesSource,
    ImagePart,
    MediaLook,
    MediaSource,
    MmserveError,
    ModelInfo,
    Output,
    Part,
    PathSource,
    PromptLook,
    PromptReport,
    RawPart,
    Release,
    Request,
    SamplingParams,
    TextPart,
    Timing,
    TokenLogprob,
    TokensPart,
    Turn,
    UrlSource,
    Usage,
    VideoPart,
)
from mmserve.prompt import with_text

__all__ = ["FakeClient", "FakeTicket", "fake_logprob"]

BOS, EOS, IMAGE = 256, 257, 258
_FIRST_PIECE = 300
_PICTURE_TOKENS = 4
_NEVER_S = 60.0

_MODEL = ModelInfo(
    name="fake",
    family="fake",
    path="/models/fake",
    context_length=1 << 16,
    vocab_size=1024,
    eos_token_ids=(EOS,),
    bos_token_id=BOS,
    image_token_id=IMAGE,
    num_slots=1 << 16,
    kv_bytes_per_token=1,
    feature_bytes_per_token=1,
    fingerprint=bytes(16),
)
Rule = Callable[[str, Request], str]


def fake_logprob(before: Sequence[int], token_id: int) -> float:
    """Log-probability of a token after the ids `before`, in (-10, 0). Pure."""
    words = ",".join(map(str, (*before, token_id))).encode()
    return -int.from_bytes(hashlib.sha256(words).digest()[:4], "big") / 2**32 * 10


def _digest_rule(prompt: str, _request: Request) -> str:
    return hashlib.sha256(prompt.encode()).hexdigest()[:8]


class FakeTicket:
    """A request under way; a thread of its own answers it. Implements `core.ports.Ticket`."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.is_cancelled = threading.Event()
        self.has_ended = False
        self._accepted = threading.Event()
        self._report: PromptReport | MmserveError | None = None
        self._news: queue.SimpleQueue[Output | MmserveError | None] = queue.SimpleQueue()

    def accept(self, report: PromptReport | MmserveError) -> None:
        """Say that the request is accepted, or refused. Changes: the ticket."""
        self._report = report
        self._accepted.set()
        if isinstance(report, MmserveError):
            self.put(report)

    def put(self, news: Output | MmserveError | None) -> None:
        """Hand over news; None ends them. Changes: the ticket."""
        self._news.put(news)

    def report(self, timeout_s: float | None = None) -> PromptReport:
        """See `core.ports.Ticket`."""
        self._accepted.wait(_NEVER_S if timeout_s is None else timeout_s)
        if isinstance(self._report, PromptReport):
            return self._report
        raise self._report or MmserveError("the fake accepted nothing in time")

    async def report_async(self) -> PromptReport:
        """See `core.ports.Ticket`; blocks for a moment."""
        return self.report()

    def outputs(self) -> Iterator[Output]:
        """See `core.ports.Ticket`."""
        while (news := self._news.get(timeout=_NEVER_S)) is not None:
            if isinstance(news, MmserveError):
                raise news
            yield news

    async def outputs_async(self) -> AsyncIterator[Output]:
        """See `core.ports.Ticket`; blocks while it waits."""
        for output in self.outputs():
            yield output

    def cancel(self) -> None:
        """See `core.ports.Ticket`."""
        self.is_cancelled.set()


class FakeClient:
    """Implements `core.ports.Client` without a model.

    Args:
        rule: the answer to a rendered prompt; by default a digest of it, so that any difference
            in a prompt shows in its answer.
        failures: an error for each text that must not stand in a prompt.
        delay_s: seconds before each token; a cancelled call ends without waiting for it.
        pieces: texts that are one token each; others are a token a byte.

    `requests` holds what was submitted, `tickets` the tickets, `prepared` the parts of hints,
    in order. Safe from any thread.
    """

    def __init__(
        self,
        rule: Rule = _digest_rule,
        *,
        failures: Mapping[str, MmserveError] | None = None,
        delay_s: float = 0.0,
        pieces: Sequence[str] = (),
    ) -> None:
        self.requests: list[Request] = []
        self.tickets: list[FakeTicket] = []
        self.prepared: list[ImagePart | VideoPart] = []
        self._rule = rule
        self._failures = dict(failures or {})
        self._delay_s = delay_s
        self._pieces = {text: _FIRST_PIECE + number for number, text in enumerate(pieces)}
        self._seen: list[tuple[int, ...]] = []
        self._lock = threading.Lock()

    @property
    def model(self) -> ModelInfo:
        """Facts of no model."""
        return _MODEL

    @property
    def num_running(self) -> int:
        """Calls that have not ended."""
        return sum(not ticket.has_ended for ticket in self.tickets)

    def submit(self, request: Request) -> FakeTicket:
        """See `core.ports.Client`. Changes: `requests`, `tickets`."""
        ticket = FakeTicket(request.request_id)
        with self._lock:
            self.requests.append(request)
            self.tickets.append(ticket)
        threading.Thread(target=self._answer, args=(request, ticket), daemon=True).start()
        return ticket

    def prepare(
        self, part: ImagePart | VideoPart, *, cache_salt: str = "", client: str = ""
    ) -> None:
        """See `core.ports.Client`. Changes: `prepared`."""
        del cache_salt, client
        with self._lock:
            self.prepared.append(part)

    def hold(self, part: ImagePart | VideoPart, *, cache_salt: str = "") -> Release:
        """Nothing is fetched. Pure."""
        del part, cache_salt
        return lambda: None

    def tokenize(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Ids of text: the longest piece that fits, else a byte. Pure."""
        ids = [BOS] if add_special_tokens else []
        position = 0
        while position < len(text):
            fitting = [piece for piece in self._pieces if text.startswith(piece, position)]
            if fitting:
                longest = max(fitting, key=len)
                ids.append(self._pieces[longest])
                position += len(longest)
            else:
                ids.extend(text[position].encode())
                position += 1
        return ids

    def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of ids; there are no control tokens to skip but the first. Pure."""
        del skip_special_tokens
        texts = {number: text for text, number in self._pieces.items()}
        parts = [texts[i].encode() if i in texts else bytes([i]) for i in token_ids if i != BOS]
        return b"".join(parts).decode("utf-8", errors="replace")

    def flush_cache(self, timeout_s: float = 0.0) -> bool:
        """Forget the prompts seen. Changes: the counts of later answers."""
        del timeout_s
        with self._lock:
            self._seen.clear()
        return True

    def counters(self) -> dict[str, float]:
        """Calls so far and calls under way."""
        return {"requests_total": len(self.requests), "running": self.num_running}

    def look(self, part: ImagePart | VideoPart) -> MediaLook:
        """Nothing to see."""
        del part
        return MediaLook(
            source="a fake",
            items=(),
            note=None,
            prompt_tokens=0,
            fetch_ms=0.0,
            probe_ms=0.0,
            encode_ms=0.0,
        )

    def render(self, request: Request) -> PromptLook:
        """The prompt's ids, all of them as text. Pure."""
        return PromptLook(token_ids=self._ids(request))

    def drawing(self, room: str, form: Literal["text", "svg", "json"] = "text") -> str:
        """The room's name, as an empty picture or a string if need be."""
        if form == "json":
            return f'"{room}"'
        if form == "text":
            return room
        return f'<svg xmlns="http://www.w3.org/2000/svg" id="{room}"/>'

    # -- answering ---------------------------------------------------------------------------

    def _answer(self, request: Request, ticket: FakeTicket) -> None:
        prompt = "<s>" + "".join(map(_shown, request.parts))
        ids = self._ids(request)
        failure = next((e for text, e in self._failures.items() if text in prompt), None)
        failure = failure or _refusal(ids, request.sampling)
        if failure is not None:
            ticket.accept(failure)
        else:
            options = tuple(self._option_ids(request, ids, text) for text in request.options)
            ticket.accept(PromptReport(ids, options=options))
            usage = self._counted(ids)
            for index in range(request.sampling.n):
                text = self._rule(prompt, request) + (str(index) if index else "")
                for output in self._outputs(request, ticket, index, text, ids, usage):
                    ticket.put(output)
            for index, option in enumerate(options, start=1):
                ticket.put(_scored(request, index, ids, option))
            ticket.put(None)
        ticket.has_ended = True

    def _outputs(
        self,
        request: Request,
        ticket: FakeTicket,
        index: int,
        text: str,
        ids: tuple[int, ...],
        usage: Usage,
    ) -> Iterator[Output]:
        text, finish = _ended(text, request.sampling)
        prompt_logprobs = _prompt_logprobs(ids, request.sampling)
        empty = Output(
            request.request_id, index, "", (), usage, prompt_logprobs=prompt_logprobs
        )
        yield empty
        context = list(ids)
        for number, character in enumerate(text, start=1):
            if self._delay_s and ticket.is_cancelled.wait(self._delay_s):
                break
            tokens = tuple(character.encode())
            logprobs = tuple(
                TokenLogprob(
                    token, fake_logprob((*context, *tokens[:k]), token), bytes([token])
                )
                for k, token in enumerate(tokens)
            )
            context.extend(tokens)
            counted = replace(usage, completion_tokens=number)
            given = logprobs if request.sampling.return_logprobs else ()
            yield Output(request.request_id, index, character, tokens, counted, given)
        if ticket.is_cancelled.is_set():
            finish = Finish("abort")
        counted = replace(usage, completion_tokens=len(context) - len(ids))
        yield Output(
            request.request_id, index, "", (), counted, finish=finish, timing=Timing(total=1.0)
        )

    def _ids(self, request: Request) -> tuple[int, ...]:
        if request.add_bos == "never":
            ids: list[int] = []
        else:
            ids = [BOS]
        text = ""
        for piece in _flat(request.parts):
            if isinstance(piece, str):
                text += piece
                continue
            ids += self.tokenize(text)
            text = ""
            ids += piece
        return tuple(ids + self.tokenize(text))

    def _option_ids(
        self, request: Request, ids: tuple[int, ...], option: str
    ) -> tuple[int, ...]:
        """Ids behind the prompt's, as the engine finds them."""
        parts = with_text(request.parts, option)
        joined = self._ids(replace(request, parts=parts))
        if len(joined) > len(ids) and joined[: len(ids)] == ids:
            return joined[len(ids) :]
        return tuple(self.tokenize(option))

    def _counted(self, ids: tuple[int, ...]) -> Usage:
        with self._lock:
            cached = max((_common(ids, seen) for seen in self._seen), default=0)
            self._seen.append(ids)
        num_image = sum(token == IMAGE for token in ids)
        return Usage(len(ids), image_tokens=num_image, cached_tokens=cached)


def _common(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    pairs = zip(first, second, strict=False)
    return next((k for k, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _ended(text: str, sampling: SamplingParams) -> tuple[str, Finish]:
    """The answer up to the stop that is complete first, or its length, and why it ends."""
    limit = len(text) if sampling.max_new_tokens is None else sampling.max_new_tokens
    search = compile_stops(sampling.stop_patterns).search()
    for end in range(1, min(limit, len(text)) + 1):
        found = [(end - len(stop), stop) for stop in sampling.stop if text[:end].endswith(stop)]
        match = search.feed(text[end - 1])
        if match is not None:
            found.append(match)
        if found:
            start, stop = min(found)
            return text[:start], Finish("stop", stop)
    if limit < len(text) or limit == 0:
        return text[:limit], Finish("length")
    return text, Finish("stop", EOS)


def _refusal(ids: tuple[int, ...], sampling: SamplingParams) -> BadRequest | None:
    first = sampling.prompt_logprobs_from
    if first is None or first <= len(ids):
        return None
    message = f"log-probabilities from {first}, the prompt has {len(ids)} tokens"
    return BadRequest(message, field="logprob_start_len", reason="range")


def _prompt_logprobs(
    ids: tuple[int, ...], sampling: SamplingParams
) -> tuple[TokenLogprob, ...] | None:
    first = sampling.prompt_logprobs_from
    if first is None:
        return None
    return tuple(
        TokenLogprob(ids[k], fake_logprob(ids[:k], ids[k]) if k else None, b"")
        for k in range(first, len(ids))
    )


def _scored(
    request: Request, index: int, ids: tuple[int, ...], option: tuple[int, ...]
) -> Output:
    joined = (*ids, *option)
    return Output(
        request.request_id,
        index,
        "",
        (),
        Usage(len(joined)),
        prompt_logprobs=tuple(
            TokenLogprob(joined[k], fake_logprob(joined[:k], joined[k]), b"")
            for k in range(len(ids), len(joined))
        ),
        finish=Finish("length"),
        timing=Timing(total=1.0),
    )


def _shown(part: Part) -> str:
    match part:
        case TextPart(text) | RawPart(text):
            return text
        case TokensPart(token_ids):
            return f"[tokens:{','.join(map(str, token_ids))}]"
        case ImagePart(source):
            return f"[image:{_source_digest(source)}]"
        case VideoPart(source):
            return f"[video:{_source_digest(source)}:{part.num_frames}]"
        case Turn(role, parts, is_open):
            inside = "".join(map(_shown, parts))
            return f"[{role}]{inside}" + ("" if is_open else f"[/{role}]")


def _flat(parts: Sequence[Part]) -> Iterator[str | list[int]]:
    """Texts, and ids where something is not text."""
    for part in parts:
        match part:
            case TokensPart(token_ids):
                yield list(token_ids)
            case ImagePart() | VideoPart():
                digest = _source_digest(part.source)
                yield [IMAGE] * _PICTURE_TOKENS + [int(digest, 16) % 1000 + _FIRST_PIECE]
            case Turn(role, inner, is_open):
                yield f"[{role}]"
                yield from _flat(inner)
                yield "" if is_open else f"[/{role}]"
            case _:
                yield _shown(part)


def _source_digest(source: MediaSource) -> str:
    match source:
        case BytesSource(content):
            held = content
        case UrlSource(name) | PathSource(name):
            held = name.encode()
        case FramesSource(frames):
            held = b"".join(frame.content for frame in frames)
    return hashlib.sha256(held).hexdigest()[:4]
