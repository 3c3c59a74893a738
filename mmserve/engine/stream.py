"""One sequence's way from updates of the scheduler to outputs of its ticket."""

from __future__ import annotations

import time
from dataclasses import replace

from mmserve.core import Finish, Jump, Output, SamplingParams, Timing, TokenLogprob, Usage
from mmserve.engine.answer_tokens import AnswerToken, AnswerTokens
from mmserve.engine.intake import Prepared
from mmserve.engine.ticket import EngineTicket
from mmserve.prompt import Detokenizer, Tokenizer
from mmserve.sched import SequenceUpdate

__all__ = ["SequenceStream"]


class SequenceStream:
    """Turns one sequence's tokens into text that can no longer change, and hands it over.

    Owned by the loop; not safe from other threads.

    Args:
        ticket: whose outputs they are.
        index: which of the request's answers.
        prepared: the request.
        tokenizer: of the model.
    """

    def __init__(
        self,
        ticket: EngineTicket,
        index: int,
        prepared: Prepared,
        tokenizer: Tokenizer,
    ) -> None:
        self.ticket = ticket
        self.prepared = prepared
        self._index = index
        self._tokenizer = tokenizer
        self._params: SamplingParams = prepared.request.sampling
        self._text = Detokenizer(
            tokenizer,
            stop=self._params.stop,
            skip_special_tokens=self._params.skip_special_tokens,
            no_stop_trim=self._params.no_stop_trim,
            search=prepared.stops.search() if prepared.stops is not None else None,
        )
        self._tokens = AnswerTokens(
            self._piece,
            may_jump=prepared.new_matcher is not None,
            is_scored=self._params.return_logprobs,
        )
        self._hidden_ids = (
            tokenizer.special_ids if self._params.skip_special_tokens else frozenset[int]()
        )
        self._scores: dict[int, TokenLogprob] | None = None
        if self._params.prompt_logprobs_from is not None:
            self._scores = {}
        self._first_token_at: float | None = None
        self._pending = ""
        self._num_healing = prepared.num_healed_bytes
        self._usage = Usage(prompt_tokens=prepared.prompt.num_tokens)

    def take(self, update: SequenceUpdate) -> Finish | None:
        """Take in the update's tokens; the finish if their text completes a stop.

        Changes: the text. Must be called once for every update, before `publish`.
        """
        if self._scores is not None:
            for position, logprob, top in update.prompt_logprobs:
                token_id = int(self.prepared.prompt.token_ids[position])
                self._scores[position] = self.entry(token_id, logprob, top)
        if self._params.max_new_tokens == 0:
            return None
        self._grow(update)
        for place, text in self._tokens.tell():
            if self._first_token_at is None:
                self._first_token_at = time.monotonic()
            may_stop = place + 1 >= self._params.min_new_tokens
            self._pending += self._text.push_bytes(self._own(text), may_stop=may_stop)
            if self._text.match is not None:
                return Finish("stop", matched=self._text.match)
        return None

    def _grow(self, update: SequenceUpdate) -> None:
        """Changes: the tokens."""
        tokens = self._tokens
        if update.opening:
            tokens.jump(Jump(0, update.opening))
        for position, logprob, top in update.forced_logprobs:
            tokens.score(position, logprob, top)
        if update.token_id is not None:
            piece = b"" if self._is_end_token(update) else self._piece(update.token_id)
            tokens.draw(AnswerToken(update.token_id, piece, update.logprob, update.top))
        if update.jump is not None:
            tokens.jump(update.jump)

    def _own(self, text: bytes) -> bytes:
        """What of a text is not the prompt's. Changes: how much of the prompt's is left."""
        num_skipped = min(len(text), self._num_healing)
        self._num_healing -= num_skipped
        if num_skipped and not self._num_healing and self._params.constraint is None:
            self._tokens.stop_jumps()
        return text[num_skipped:]

    def _told(self, usage: Usage) -> Usage:
        """The last usage: forced tokens that came behind the answer's end do not count."""
        if self._params.max_new_tokens == 0:
            return usage
        forced = min(usage.forced_tokens, self._tokens.num_forced)
        return replace(usage, completion_tokens=self._tokens.num_told, forced_tokens=forced)

    def _piece(self, token_id: int) -> bytes:
        return b"" if token_id in self._hidden_ids else self._tokenizer.piece(token_id)

    def _is_end_token(self, update: SequenceUpdate) -> bool:
        finish = update.finish
        is_matched = finish is not None and finish.matched == update.token_id
        return is_matched and not self._params.no_stop_trim

    def publish(self, update: SequenceUpdate) -> None:
        """Hand the update's news to the ticket. Changes: the ticket."""
        text, self._pending = self._pending, ""
        self._usage = update.usage
        if update.finish is not None:
            text += self._text.flush()
            self._usage = self._told(update.usage)
        tokens: tuple[AnswerToken, ...] = ()
        if self._params.max_new_tokens == 0:
            logprobs = self._ranking(update)
        else:
            tokens = tuple(self._tokens.take(is_last=update.finish is not None))
            logprobs = self._token_logprobs(tokens)
        is_news = tokens or text or update.token_id is not None or update.finish is not None
        if not is_news:
            return
        self.put(
            Output(
                request_id=self.ticket.request_id,
                index=self._index,
                text=text,
                token_ids=tuple(token.token_id for token in tokens),
                usage=self._usage,
                logprobs=logprobs,
                prompt_logprobs=self._prompt_logprobs(),
                finish=update.finish,
                timing=self._timing(update) if update.finish is not None else None,
            )
        )

    def put(self, output: Output) -> None:
        """Hand an output over. Changes: the ticket."""
        self.ticket.put(output)

    def entry(
        self,
        token_id: int,
        logprob: float | None,
        top: tuple[tuple[int, float], ...],
        *,
        is_forced: bool = False,
    ) -> TokenLogprob:
        """A token with its numbers and pieces. Pure."""
        piece = self._tokenizer.piece
        named = tuple((other, value, piece(other)) for other, value in top)
        return TokenLogprob(token_id, logprob, piece(token_id), named, is_forced)

    def abandon(self, finish: Finish) -> None:
        """End the sequence when the scheduler has failed. Changes: the ticket."""
        timing = Timing(total=(time.monotonic() - self.ticket.created_at) * 1e3)
        self.put(
            Output(
                request_id=self.ticket.request_id,
                index=self._index,
                text="",
                token_ids=(),
                usage=self._usage,
                finish=finish,
                timing=timing,
            )
        )

    def _ranking(self, update: SequenceUpdate) -> tuple[TokenLogprob, ...]:
        """The likeliest next token, where none is generated."""
        if not self._params.return_logprobs or update.token_id is None:
            return ()
        return (self.entry(update.token_id, update.logprob, update.top),)

    def _token_logprobs(self, tokens: tuple[AnswerToken, ...]) -> tuple[TokenLogprob, ...]:
        if not self._params.return_logprobs:
            return ()
        return tuple(
            self.entry(one.token_id, one.logprob, one.top, is_forced=one.is_forced)
            for one in tokens
        )

    def _prompt_logprobs(self) -> tuple[TokenLogprob, ...] | None:
        """Entries of all positions asked for, once. Changes: the scores, which are let go."""
        start, scores = self._params.prompt_logprobs_from, self._scores
        if start is None or scores is None:
            return None
        self._scores = None
        prompt = self.prepared.prompt
        is_media = {
            position for span in prompt.spans for position in range(span.start, span.end)
        }
        entries = []
        for position in range(start, prompt.num_tokens):
            token_id = int(prompt.token_ids[position])
            entry = None if position in is_media else scores.get(position)
            entries.append(entry or self.entry(token_id, None, ()))
        return tuple(entries)

    def _timing(self, update: SequenceUpdate) -> Timing:
        now, start = time.monotonic(), self.ticket.created_at
        first = self._first_token_at
        media = self.prepared.media_ms
        return Timing(
            fetch=self.prepared.fetch_ms,
            decode=media.decode,
            preprocess=media.preprocess,
            encode=update.encode_ms,
            queue=update.queue_ms,
            prefill=update.prefill_ms,
            decode_text=(now - first) * 1e3 if first is not None else 0.0,
            first_token=(first - start) * 1e3 if first is not None else 0.0,
            total=(now - start) * 1e3,
        )
