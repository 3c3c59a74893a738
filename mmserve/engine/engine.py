"""The engine in this process: the loop in a thread behind the `Client` port."""

from __future__ import annotations

import secrets
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

from mmserve.constrained import NewMatcher
from mmserve.constrained.show import draw_kept
from mmserve.core import (
    Aborted,
    BadRequest,
    Broken,
    Busy,
    EngineConfig,
    ImagePart,
    MediaLook,
    ModelInfo,
    NotFound,
    Output,
    Part,
    PromptLook,
    Release,
    Request,
    SamplingParams,
    VideoPart,
)
from mmserve.engine.answer import Answer, collect
from mmserve.engine.calls import chat_parts, prompt_parts, sampling_of
from mmserve.engine.counters import engine_counters, grammar_counters, sched_counters
from mmserve.engine.early import Hints
from mmserve.engine.fetching import FetchThreads
from mmserve.engine.intake import Prepared, as_ours
from mmserve.engine.load import Parts, load_parts
from mmserve.engine.loop import EngineLoop
from mmserve.engine.rendering import look_at_prompt
from mmserve.engine.ticket import EngineTicket
from mmserve.prompt import media_parts
from mmserve.vision import look_at, remote_host

__all__ = ["Engine"]

_INTAKE_THREADS = 4
_FLUSH_POLL_S = 0.02


class Engine:
    """One model on one device, answering from this process. Implements `core.ports.Client`.

    Args:
        model: a Hugging Face directory, a `.gguf` file, or an embedded name.
        settings: fields of `EngineConfig`; `sched` and `media` are their own values.

    Safe from any thread. Close it, or use it as a context manager.
    """

    def __init__(self, model: str = "tabletop", **settings: Any) -> None:  # noqa: ANN401
        self._open(load_parts(EngineConfig(model=model, **settings)))

    @classmethod
    def from_config(cls, config: EngineConfig) -> Self:
        """An engine with every setting given as a value."""
        return cls.from_parts(load_parts(config))

    @classmethod
    def from_parts(cls, parts: Parts) -> Self:
        """An engine from its rooms, already made; tests use it to put a fake runner in."""
        engine = cls.__new__(cls)
        engine._open(parts)
        return engine

    def _open(self, parts: Parts) -> None:
        self._parts = parts
        self._loop = EngineLoop(
            parts.scheduler,
            parts.runner,
            parts.plane,
            model=parts.model,
            tokenizer=parts.tokenizer,
            early_bytes=parts.config.media.source_cache_bytes,
            verify_steps=parts.config.verify_steps,
        )
        self._hints = Hints(parts.plane, self._loop.anticipate)
        self._text_pool = ThreadPoolExecutor(_INTAKE_THREADS, thread_name_prefix="mmserve-text")
        self._media_pool = ThreadPoolExecutor(
            2 * _INTAKE_THREADS, thread_name_prefix="mmserve-intake"
        )
        self._clip_pool = ThreadPoolExecutor(_INTAKE_THREADS, thread_name_prefix="mmserve-look")
        self._fetch_threads = FetchThreads()
        self._grammars: dict[EngineTicket, Future[NewMatcher]] = {}
        """What tickets wait for; nothing else is held for them meanwhile."""
        self._close_lock = threading.Lock()
        self._is_closed = False
        self._loop.start()

    # --- Client ------------------------------------------------------------------------------

    @property
    def model(self) -> ModelInfo:
        """Facts of the model served."""
        return self._parts.model

    def submit(self, request: Request) -> EngineTicket:
        """Hand a request in; see `core.ports.Client`."""
        ticket = EngineTicket(request.request_id, request.num_sequences, self._cancel)
        try:
            grammar = self._parts.intake.begin(request)
        except Exception as error:  # noqa: BLE001  (a refusal is the ticket's to tell)
            ticket.refuse(as_ours(error, "the request could not be read"))
            return ticket
        if grammar is None:
            self._hand_on(request, ticket, None)
        else:
            self._grammars[ticket] = grammar
            grammar.add_done_callback(partial(self._on_grammar, request, ticket))
        return ticket

    def _on_grammar(
        self, request: Request, ticket: EngineTicket, grammar: Future[NewMatcher]
    ) -> None:
        """Go on with a request whose grammar is there, refused, or not waited for any more."""
        self._grammars.pop(ticket, None)
        if grammar.cancelled():
            ticket.refuse(_left())
        elif (error := grammar.exception()) is None:
            self._hand_on(request, ticket, grammar.result())
        elif self._is_closed:
            ticket.refuse(_closed())
        else:
            ticket.refuse(as_ours(error, "the grammar could not be compiled"))

    def _hand_on(
        self, request: Request, ticket: EngineTicket, new_matcher: NewMatcher | None
    ) -> None:
        media = tuple(media_parts(request.parts))
        host = next(filter(None, map(remote_host, media)), "")
        take_in = partial(self._take_in, request, ticket, new_matcher)
        try:
            if host:
                self._fetch_threads.submit(host, take_in)
            else:
                self._threads_for(media).submit(take_in)
        except Busy as error:
            ticket.refuse(error)
        except RuntimeError:  # the pool is shut down
            ticket.refuse(_closed())

    def _threads_for(self, media: tuple[ImagePart | VideoPart, ...]) -> ThreadPoolExecutor:
        """Looks at clips may take long, and hold up neither pictures nor text. Pure."""
        if any(isinstance(part, VideoPart) for part in media):
            return self._clip_pool
        return self._media_pool if media else self._text_pool

    def _take_in(
        self, request: Request, ticket: EngineTicket, new_matcher: NewMatcher | None
    ) -> None:
        if self._is_closed:
            ticket.refuse(_closed())
            return
        if ticket.is_cancelled:
            ticket.refuse(_left())
            return
        try:
            prepared: Prepared = self._parts.intake.finish(request, new_matcher)
        except Exception as error:  # noqa: BLE001  (a caller must never wait for ever)
            ticket.refuse(as_ours(error, "the request could not be prepared"))
        else:
            self._loop.submit(prepared, ticket)

    def _cancel(self, ticket: EngineTicket) -> None:
        """End a request: at once if it waits for its grammar, else by the loop."""
        grammar = self._grammars.get(ticket)
        if grammar is None or not grammar.cancel():
            self._loop.cancel(ticket)

    def prepare(
        self, part: ImagePart | VideoPart, *, cache_salt: str = "", client: str = ""
    ) -> None:
        """A hint that requests will soon have this part; see `core.ports.Client`."""
        self._hints.add(part, cache_salt, client)

    def hold(self, part: ImagePart | VideoPart, *, cache_salt: str = "") -> Release:
        """Keep what requests fetch of this part; see `core.ports.Client`."""
        ends = ExitStack()
        if (plane := self._parts.plane) is not None:
            plane.hold(part, salt=cache_salt)
            ends.callback(plane.release, part, salt=cache_salt)
        return ends.close

    def look(self, part: ImagePart | VideoPart) -> MediaLook:
        """What the model will see of a picture or clip; see `core.ports.Client`."""
        plane = self._parts.plane
        if plane is None:
            message = f"model {self.model.name} takes text only"
            raise BadRequest(message, field="file", reason="media")
        salt = secrets.token_hex(16)
        sight = look_at(plane, part, salt=salt)
        sampling = SamplingParams(max_new_tokens=0)
        request = Request(request_id="look", parts=(part,), sampling=sampling, cache_salt=salt)
        answer = collect(self.submit(request).outputs())
        clip = sight.resolved.clip
        return MediaLook(
            source=sight.source,
            items=sight.items,
            note=None if clip is None else clip.note,
            prompt_tokens=answer.usage.image_tokens + answer.usage.video_tokens,
            fetch_ms=sight.resolved.fetch_ms,
            probe_ms=sight.resolved.probe_ms,
            encode_ms=answer.timings[0].encode,
        )

    def render(self, request: Request) -> PromptLook:
        """The prompt that a request would have; see `core.ports.Client`."""
        if self._is_closed:
            raise _closed()
        try:
            prepared = self._parts.intake.prepare(request)
            return look_at_prompt(prepared, self._parts.plane)
        except Exception as error:  # noqa: BLE001  (as those of a ticket)
            raise as_ours(error, "the prompt could not be rendered") from None

    def tokenize(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Token ids of template text; see `core.ports.Client`."""
        token_ids = self._parts.tokenizer.encode_template(text)
        bos = self._parts.tokenizer.bos_token_id
        if add_special_tokens and bos is not None and token_ids[:1] != [bos]:
            return [bos, *token_ids]
        return token_ids

    def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; see `core.ports.Client`."""
        return self._parts.tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def flush_cache(self, timeout_s: float = 0.0) -> bool:
        """Forget cached KV, features and hints; see `core.ports.Client`."""
        deadline = time.monotonic() + timeout_s
        while not self._loop.flush():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_FLUSH_POLL_S)
        if self._parts.plane is not None:
            self._parts.plane.forget()
        return True

    def counters(self) -> dict[str, float]:
        """Counters and gauges by name; raises if the loop has stopped. See `Client`.

        Cost: some milliseconds if requests have ended since, for the optimum of the latest.
        """
        if self._loop.failure is not None:
            raise self._loop.failure
        plane = self._parts.plane
        media = None if plane is None else plane.counters()
        scheduler, config = self._parts.scheduler, self._parts.config.sched
        named = engine_counters(
            scheduler.counts(), media, self._loop.ends, self.model.feature_bytes_per_token
        )
        named |= grammar_counters(self._parts.grammars.counts())
        return named | sched_counters(scheduler.report(), config)

    def drawing(self, room: str, form: Literal["text", "svg", "json"] = "text") -> str:
        """A room's state for people to look at; see `core.ports.Client`."""
        if room == "constrained":
            if form == "json":
                raise NotFound(f"no drawing of {room} as JSON", what="drawing", name=room)
            return draw_kept(self._parts.grammars.kept(), self._parts.grammars.counts(), form)
        scheduler = self._parts.scheduler
        answer: str = self._loop.call(lambda: scheduler.drawing(room, form)).result()
        return answer

    def pulse(self) -> Future[None]:
        """Done when the loop next comes by; fails if it has stopped. Changes: its inbox."""
        return self._loop.call(lambda: None)

    # --- plain calls -------------------------------------------------------------------------

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        images: object = None,
        videos: object = None,
        sampling_params: SamplingParams | Mapping[str, Any] | None = None,
        stream: bool = False,
    ) -> Answer | Iterator[Output]:
        """Answer a prompt in template form; the k-th placeholder takes the k-th picture.

        Returns one `Answer` (with `n` in `sampling_params`, its `texts` has n entries), or with
        `stream` the outputs as they come. Raises what the request is refused or fails with.
        """
        return self._call(prompt_parts(prompt, images, videos), sampling_params, stream=stream)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        sampling_params: SamplingParams | Mapping[str, Any] | None = None,
        stream: bool = False,
    ) -> Answer | Iterator[Output]:
        """Answer messages in OpenAI's form; media may also be paths, bytes or PIL pictures."""
        return self._call(chat_parts(messages), sampling_params, stream=stream)

    def _call(
        self,
        parts: tuple[Part, ...],
        params: SamplingParams | Mapping[str, Any] | None,
        *,
        stream: bool,
    ) -> Answer | Iterator[Output]:
        request = Request(
            request_id=uuid.uuid4().hex, parts=parts, sampling=sampling_of(params)
        )
        outputs = _read(self.submit(request))
        return outputs if stream else collect(outputs)

    # --- life --------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop; what is open ends with "abort". Idempotent."""
        with self._close_lock:
            self._is_closed = True
            self._parts.grammars.close()
            self._text_pool.shutdown(wait=True)
            self._media_pool.shutdown(wait=True)
            self._clip_pool.shutdown(wait=True)
            self._fetch_threads.shutdown()
            self._hints.close()
            self._loop.close()
            if self._parts.plane is not None:
                self._parts.plane.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _read(ticket: EngineTicket) -> Iterator[Output]:
    """Outputs of a request, which is cancelled when its reader leaves early."""
    try:
        yield from ticket.outputs()
    finally:
        ticket.cancel()


def _closed() -> Broken:
    return Broken("the engine is closed", hint="make a new engine")


def _left() -> Aborted:
    return Aborted("the request was cancelled before it began")
