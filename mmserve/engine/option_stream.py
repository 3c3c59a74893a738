"""Sequences of a request with options: each scores a part of the tree, all are told together.

stream 0, stream 1 ... -> OptionOutputs: places of the tree -> ticket, once all have ended
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mmserve.core import Broken, Finish, Output, TokenLogprob
from mmserve.engine.intake import Prepared
from mmserve.engine.options import OptionTree
from mmserve.engine.stream import SequenceStream
from mmserve.engine.ticket import EngineTicket
from mmserve.prompt import Tokenizer
from mmserve.sched import SequenceUpdate

__all__ = ["OptionOutputs", "OptionStream"]


class OptionOutputs:
    """Gathers the outputs of a request with options and tells them when all have ended.

    If one sequence fails or is aborted, all end as it did. For the loop's thread.

    Args:
        ticket: whose outputs they are.
        tree: of the options.
    """

    def __init__(self, ticket: EngineTicket, tree: OptionTree) -> None:
        self.ticket = ticket
        self._tree = tree
        self._known: dict[int, TokenLogprob] = {}
        self._ends: dict[int, Output] = {}

    def note(self, sequence: int, offset: int, entry: TokenLogprob) -> None:
        """Take the log-probability of a rival. Changes: what is known of the tree."""
        self._known[self._tree.place(sequence, offset, entry.token_id)] = entry

    def put(self, output: Output) -> None:
        """Take the only output of a sequence. Changes: what is known; the ticket at the end."""
        self._ends[output.index] = output
        if output.index > 0:
            first = self._tree.first_own(output.index - 1)
            places = self._tree.places[output.index - 1][first:]
            self._known.update(zip(places, output.prompt_logprobs or (), strict=False))
        if len(self._ends) <= len(self._tree.options):
            return
        outputs = [self._ends[index] for index in range(len(self._ends))]
        failure = next(filter(None, map(_failure, outputs)), None) or self._gap()
        for one in self._scored(outputs) if failure is None else _failed(outputs, failure):
            self.ticket.put(one)

    def _gap(self) -> Finish | None:
        """The end of all if a place of the tree has no number."""
        if len(self._known) == len(self._tree.children):
            return None
        return Finish("error", error=Broken("a token of an option was not scored"))

    def _scored(self, outputs: Sequence[Output]) -> list[Output]:
        options = [
            replace(output, prompt_logprobs=tuple(map(self._known.__getitem__, places)))
            for output, places in zip(outputs[1:], self._tree.places, strict=True)
        ]
        return [outputs[0], *options]


class OptionStream(SequenceStream):
    """The stream of one sequence of a request with options.

    Args:
        outputs: of the request.
        index: of the sequence.
        prepared: what it answers.
        tokenizer: of the model.
    """

    def __init__(
        self, outputs: OptionOutputs, index: int, prepared: Prepared, tokenizer: Tokenizer
    ) -> None:
        super().__init__(outputs.ticket, index, prepared, tokenizer)
        self._outputs = outputs
        self._sequence = index

    def take(self, update: SequenceUpdate) -> Finish | None:
        """Take in the update's scores; see `SequenceStream.take`. Changes: the outputs."""
        for position, token_id, logprob, top in update.rival_logprobs:
            offset = position - self.prepared.num_before
            self._outputs.note(self._sequence, offset, self.entry(token_id, logprob, top))
        return super().take(update)

    def put(self, output: Output) -> None:
        """Hand it to the others' outputs. Changes: the outputs."""
        self._outputs.put(output)


def _failure(output: Output) -> Finish | None:
    finish = output.finish
    return finish if finish is not None and finish.reason in ("abort", "error") else None


def _failed(outputs: Sequence[Output], failure: Finish) -> list[Output]:
    return [
        replace(output, logprobs=(), prompt_logprobs=None, finish=failure) for output in outputs
    ]
