"""The loop: inbox, plan, run, commit, outbox. One thread owns the scheduler and the runner."""

from __future__ import annotations

import logging
import queue
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from mmserve.core import (
    Aborted,
    Begun,
    Broken,
    Finish,
    ForwardPlan,
    MmserveError,
    ModelInfo,
    Pending,
    Runner,
    RunnerFailed,
)
from mmserve.engine.early import EarlyItems
from mmserve.engine.intake import Prepared, as_ours
from mmserve.engine.option_stream import OptionOutputs, OptionStream
from mmserve.engine.stream import SequenceStream
from mmserve.engine.ticket import EngineTicket
from mmserve.prompt import Tokenizer
from mmserve.sched import Scheduler, SequenceSpec, SequenceUpdate, is_foreseen
from mmserve.vision import MediaItem, MediaPlane

__all__ = ["EngineLoop", "Pixels"]

_GOLDEN = 0x9E3779B97F4A7C15
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pixels:
    """What the media plane has to say about one wanted item."""

    digest: bytes
    inputs: dict[str, NDArray[Any]] | None
    error: MmserveError | None
    decode_ms: float
    preprocess_ms: float


class EngineLoop:
    """Runs steps until closed. Other threads only put work into its inbox.

    Every accepted sequence gets exactly one end: from the scheduler, from `close`, or, if the
    loop itself breaks, from `_break`.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        plane: MediaPlane | None,
        *,
        model: ModelInfo,
        tokenizer: Tokenizer,
        early_bytes: int = 0,
        verify_steps: bool = False,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._plane = plane
        self._model = model
        self._tokenizer = tokenizer
        self._verify_steps = verify_steps
        self._early = EarlyItems(scheduler.is_anticipated, early_bytes)
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._gate = threading.Lock()
        """Held while work goes into the inbox, and while that is closed for good."""
        self._is_over = False
        self._streams: dict[int, SequenceStream] = {}
        self._by_ticket: dict[EngineTicket, list[int]] = {}
        self._ends: Counter[str] = Counter({"stop": 0, "length": 0, "abort": 0, "error": 0})
        self._next_id = 0
        self._is_open = True
        self._failure: MmserveError | None = None
        self._begun: Begun | None = None
        """The next step, begun before the last one was back."""
        self._thread = threading.Thread(target=self._run, name="mmserve-loop", daemon=True)

    # --- from any thread ---------------------------------------------------------------------

    def start(self) -> None:
        """Begin to run steps."""
        self._thread.start()

    @property
    def failure(self) -> MmserveError | None:
        """Why the loop has stopped, or None while it works. Pure."""
        return self._failure

    @property
    def ends(self) -> dict[str, int]:
        """Accepted sequences that have ended so far, by the reason their caller heard. Pure."""
        return dict(self._ends)

    def submit(self, prepared: Prepared, ticket: EngineTicket) -> None:
        """Queue a prepared request; refused if the loop has ended. Changes: the inbox."""
        if not self._put(lambda: self._add(prepared, ticket)):
            ticket.refuse(self._reason())

    def anticipate(self, items: tuple[MediaItem, ...], client: str) -> None:
        """Queue media that a request will soon ask about. Changes: the inbox."""
        self._put(lambda: self._anticipate(items, client))

    def cancel(self, ticket: EngineTicket) -> None:
        """Queue the abort of a request. Changes: the inbox."""
        if not ticket.is_settled:
            self._put(lambda: self._abort(ticket))

    def call(self, work: Callable[[], Any]) -> Future[Any]:
        """Run `work` in the loop's thread between two steps. Changes: the inbox."""
        future: Future[Any] = Future()

        def answer() -> None:
            try:
                future.set_result(work())
            except Exception as error:  # noqa: BLE001  (it is the caller's, not the loop's)
                future.set_exception(error)

        if not self._put(answer):
            future.set_exception(self._reason())
        return future

    def flush(self) -> bool:
        """Forget cached KV, features and hints; False if sequences run. Waits for the loop."""

        def work() -> bool:
            is_flushed = self._scheduler.flush()
            self._early.prune()
            return is_flushed

        is_flushed: bool = self.call(work).result()
        return is_flushed

    def close(self) -> None:
        """Stop after the current step and end what is open with "abort". Idempotent."""
        if self._thread.is_alive():
            self._put(self._stop)
            self._thread.join()

    def _put(self, work: Callable[[], None]) -> bool:
        """Queue work; False if the loop will never get to it. Changes: the inbox."""
        with self._gate:
            if not self._is_over:
                self._inbox.put(work)
            return not self._is_over

    def _reason(self) -> MmserveError:
        """Why nothing is taken in any more. Pure."""
        return self._failure or Aborted("the engine is closed")

    # --- the loop's own thread ---------------------------------------------------------------

    def _run(self) -> None:
        try:
            has_work = False
            while self._is_open:
                self._drain(block=not has_work)
                has_work = self._is_open and self._step()
            self._end_all()
        except BaseException as error:  # noqa: BLE001  (every caller must hear of it)
            _log.exception("the engine loop has stopped")
            self._break(error)
        self._is_open = False
        with self._gate:
            self._is_over = True
        self._drain(block=False)

    def _drain(self, *, block: bool) -> None:
        if block:
            self._inbox.get()()
        while True:
            try:
                work = self._inbox.get_nowait()
            except queue.Empty:
                return
            work()

    def _step(self) -> bool:
        plan = self._scheduler.plan()
        self._ask_for_pixels()
        if plan is None:
            return False
        self._publish(self._execute(plan))
        if self._verify_steps:
            self._scheduler.verify()
        return True

    def _execute(self, plan: ForwardPlan) -> tuple[SequenceUpdate, ...]:
        begun, self._begun = self._begun, None
        if begun is not None and not is_foreseen(begun.plan, plan):
            begun = None
        try:
            pending = self._runner.launch(plan, begun)
            if self._runner.looks_ahead:
                self._begin_next(pending)
            sampled = pending.finish()
        except RunnerFailed as error:
            self._begun = None
            _log.exception("step %d failed", plan.step)
            return self._scheduler.rollback(plan, error)
        return self._scheduler.commit(sampled)

    def _begin_next(self, pending: Pending) -> None:
        """Let the device go on with what most likely comes next. Changes: what is begun."""
        foreseen = self._scheduler.foresee()
        if foreseen is not None:
            self._begun = self._runner.begin(foreseen, pending)

    def _publish(self, updates: Iterable[SequenceUpdate]) -> None:
        for update in updates:
            stream = self._streams.get(update.sequence_id)
            if stream is None:
                continue
            stop = stream.take(update)
            news = update if stop is None else self._stopped(update, stop)
            stream.publish(news)
            if news.finish is not None:
                self._ends[news.finish.reason] += 1
                self._forget(update.sequence_id, stream.ticket)
                self._let_go(stream.prepared)

    def _stopped(self, update: SequenceUpdate, stop: Finish) -> SequenceUpdate:
        """The update that ends a sequence whose last token completed a stop text."""
        if update.finish is None:
            self._scheduler.finish(update.sequence_id, stop)
        return replace(update, finish=stop)

    def _forget(self, sequence_id: int, ticket: EngineTicket) -> None:
        del self._streams[sequence_id]
        ids = self._by_ticket[ticket]
        ids.remove(sequence_id)
        if not ids:
            del self._by_ticket[ticket]

    def _add(self, prepared: Prepared, ticket: EngineTicket) -> None:
        if ticket.is_cancelled or not self._is_open:
            ticket.refuse(self._failure or Aborted("the request was cancelled before it began"))
            return
        seed = prepared.request.sampling.seed
        if seed is None:
            seed = secrets.randbits(64)
        added: list[int] = []
        try:
            for index, stream in enumerate(self._open_streams(prepared, ticket)):
                self._add_sequence(stream, seed + index * _GOLDEN)
                added.append(self._next_id - 1)
        except BaseException as error:  # noqa: BLE001  (one request must not end the loop)
            for sequence_id in added:
                self._scheduler.abort(sequence_id)
                self._forget(sequence_id, ticket)
            ticket.refuse(as_ours(error, "the request could not be scheduled"))
            return
        self._early.prune()
        ticket.accept(prepared.report)

    def _open_streams(
        self, prepared: Prepared, ticket: EngineTicket
    ) -> Iterator[SequenceStream]:
        """A stream for each sequence of a request, by index."""
        if prepared.tree is not None:
            outputs = OptionOutputs(ticket, prepared.tree)
            for index, one in enumerate((prepared, *prepared.options)):
                yield OptionStream(outputs, index, one, self._tokenizer)
        else:
            for index in range(prepared.request.sampling.n):
                yield SequenceStream(ticket, index, prepared, self._tokenizer)

    def _add_sequence(self, stream: SequenceStream, seed: int) -> None:
        sequence_id, self._next_id = self._next_id, self._next_id + 1
        prepared = stream.prepared
        request = prepared.request
        spec = SequenceSpec(
            sequence_id=sequence_id,
            prompt=prepared.prompt,
            sampling=request.sampling,
            seed=seed % 2**64,
            eos_token_ids=self._model.eos_token_ids,
            client=request.client,
            priority=request.priority,
            matcher=prepared.new_matcher() if prepared.new_matcher is not None else None,
            rivals=prepared.rivals,
        )
        self._scheduler.add(spec)  # last of what may fail: nothing runs without a stream
        self._streams[sequence_id] = stream
        self._by_ticket.setdefault(stream.ticket, []).append(sequence_id)

    def _abort(self, ticket: EngineTicket) -> None:
        for sequence_id in tuple(self._by_ticket.get(ticket, ())):
            update = self._scheduler.abort(sequence_id)
            if update is not None:
                self._publish((update,))

    # --- pixels ------------------------------------------------------------------------------

    def _ask_for_pixels(self) -> None:
        wanted = self._scheduler.wanted()
        if not wanted or self._plane is None:
            return
        items = tuple(self._item(digest) for digest in wanted)

        def on_ready(*news: Any) -> None:  # noqa: ANN401  (the fields of Pixels)
            self._put(lambda: self._take_pixels(Pixels(*news)))

        self._plane.request_pixels(items, on_ready)

    def _item(self, digest: bytes) -> MediaItem:
        """How to decode what is wanted, for a request, or else for a hint. Pure."""
        sharers = self._sharers(digest)
        item = sharers[0].items[digest] if sharers else self._early.get(digest)
        if item is None:
            raise Broken("pixels are wanted of a picture that nobody has")
        return item

    def _anticipate(self, items: tuple[MediaItem, ...], client: str) -> None:
        if self._is_open and self._early.has_room(items):
            sizes = {item.digest: item.num_tokens for item in items}
            self._scheduler.anticipate(sizes, client)
            self._early.add(items)

    def _sharers(self, digest: bytes) -> list[Prepared]:
        """Requests under way that have this picture, each once. Pure."""
        ids = self._scheduler.needers(digest)
        several = (self._streams[number].prepared for number in ids)
        found = {id(prepared.media_ms): prepared for prepared in several}
        return list(found.values())

    def _let_go(self, prepared: Prepared) -> None:
        """A sequence has ended. Changes: what is awaited; its pixels may not be decoded."""
        nobodys = [one for one in prepared.items if self._scheduler.is_for_nobody(one)]
        if self._plane is None or not nobodys:
            return
        for digest in self._plane.let_go(nobodys):
            self._publish(self._scheduler.refuse(digest, Aborted("nobody needs the picture")))

    def _take_pixels(self, pixels: Pixels) -> None:
        if not self._is_open:
            return
        sharers = self._sharers(pixels.digest)
        for prepared in sharers:
            prepared.media_ms.decode += pixels.decode_ms
            prepared.media_ms.preprocess += pixels.preprocess_ms
        hinted = self._early.pop(pixels.digest)
        item = sharers[0].items[pixels.digest] if sharers else hinted
        if pixels.inputs is not None and item is not None:
            self._scheduler.provide(
                pixels.digest,
                pixels.inputs,
                num_patches=item.num_patches,
                decode_ms=pixels.decode_ms,
            )
        else:
            if hinted is not None:
                _log.debug("a hint came to nothing: %s", pixels.error)
            error = pixels.error or Aborted("nobody needs the picture any more")
            self._publish(self._scheduler.refuse(pixels.digest, error))

    # --- ends --------------------------------------------------------------------------------

    def _stop(self) -> None:
        self._is_open = False

    def _end_all(self) -> None:
        finish = Finish("abort", error=Aborted("the engine is closing"))
        for sequence_id in tuple(self._streams):
            self._publish((self._scheduler.finish(sequence_id, finish),))

    def _break(self, error: BaseException) -> None:
        """End all without the scheduler, whose state is unknown. Changes: the tickets."""
        failure = error if isinstance(error, MmserveError) else Broken("the engine has stopped")
        self._failure = failure
        for sequence_id, stream in tuple(self._streams.items()):
            stream.abandon(Finish("error", error=failure))
            self._forget(sequence_id, stream.ticket)
