"""A whole run: check input and output before anything is asked or changed, then answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Self

from mmserve.batch.answering import Answering, BatchSettings, Progress
from mmserve.batch.asker import Asker
from mmserve.batch.elsewhere import Elsewhere
from mmserve.batch.job import JobIndex, Plan, disk_told, survey
from mmserve.batch.output import OutputMode, open_output
from mmserve.batch.rows import Rows
from mmserve.batch.summary import Summary, Tally
from mmserve.core import BadRequest

__all__ = ["BatchRun", "answer_file", "progress_path"]

_EXISTS_HINT = "--resume continues that run, --overwrite starts again"


class BatchRun:
    """A checked input, its locked output and the index beside it; use as a context manager.

    Args:
        source: the rows, see `parse_row`.
        target: the records, see `record_line`: as they are done while the run works, in the
            order of `source` when it has ended.
        settings: how to run it.
        make_plan: gives the order of the work, from the index and the clips that are open at
            once; measurements have others.

    Raises BadRequest if `target` holds records and the mode forbids them, or they are not about
    this `source`, or were made with other settings; Busy if another run writes `target`. Then,
    and where nothing was begun, `target` is as it was, and no file is left that was not there.
    Cost: reads both files once. Memory: does not grow with them.
    """

    def __init__(
        self,
        source: Path,
        target: Path,
        settings: BatchSettings,
        make_plan: Callable[[JobIndex, int], Plan] = Plan,
    ) -> None:
        if target.exists() and source.samefile(target):
            message = f"input and output are the same file, {target}"
            raise BadRequest(message, field="output", reason="same_file")
        self._rows = Rows(source, settings.rows, settings.ask)
        self._settings = settings
        self._make_plan = make_plan
        self._tally: Tally | None = None
        self._has_begun = False
        self._output = open_output(target, settings.mode)
        try:
            with disk_told(progress_path(target)):
                self._index = JobIndex(progress_path(target))
        except BaseException:
            self._output.discard()
            raise
        try:
            with disk_told(self._index.path):
                self._take_up()
                survey(self._rows, self._index, settings.ask)
                self._num_due, self._num_kept = self._index.num_due, self._index.num_kept
        except BaseException:
            self.close()
            raise

    @property
    def num_left(self) -> int:
        """Records that are still due. Pure."""
        return self._num_due - sum(self._num_kept)

    def answer(self, client: Asker | Elsewhere, on_progress: Progress | None = None) -> Summary:
        """Answer what is left, one record an answer. Call it once.

        A row that cannot be answered gives error records and the run goes on. On any exception,
        also KeyboardInterrupt, questions under way are cancelled and the output holds whole
        records. `on_progress` is called at the start and after each record.

        Changes: the output and its index.
        Raises BadRequest if the answers before are another model's; Broken if the engine keeps
        failing; Aborted if more questions fail than `max_errors`.
        """
        known = _model_facts(client)
        with disk_told(self._index.path):
            self._compare(known)
            self._begin(known)
            tally = self._tally = self.tally()
            plan = self._make_plan(self._index, self._settings.open_clips)
            answering = Answering(
                client,
                self._index,
                self._output,
                self._rows,
                self._settings,
                tally,
                on_progress,
            )
            try:
                if isinstance(client, Elsewhere):
                    answering.take(plan, client)
                else:
                    answering.do(plan)
            finally:
                answering.cancel()
            self._finish()
        return tally.summary()

    def settle(self) -> Summary:
        """End a run of which nothing is left to ask; for that no client is needed.

        Changes: the output, if it is not whole or not in order.
        """
        with disk_told(self._index.path):
            self._begin({})
            self._finish()
        return self.summary()

    def tally(self) -> Tally:
        """Counts so far; while the run works it goes on counting. Pure."""
        return self._tally or Tally(self._num_due, *self._num_kept)

    def summary(self) -> Summary:
        """Sums so far. Pure."""
        return self.tally().summary()

    def close(self) -> None:
        """Give the output back. Idempotent."""
        if not self._has_begun:
            self._index.discard()
            self._output.discard()
            return
        self._index.close()
        self._output.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _facts(self) -> dict[str, object]:
        """What the answers depend on, besides the rows and the model."""
        own = self._settings
        return {**asdict(own.ask), **asdict(own.rows), **own.fixed}

    def _take_up(self) -> None:
        """Bring the index to what is kept of the runs before. Changes: it, uncommitted."""
        mode, index, path = self._settings.mode, self._index, self._output.path
        if mode is OutputMode.NEW and index.is_unfinished:
            message = f"{index.path} holds the records of a run that has not ended"
            raise BadRequest(message, field="output", reason="exists", hint=_EXISTS_HINT)
        if mode in (OutputMode.NEW, OutputMode.OVERWRITE):
            index.clear()
            return
        if not self._output.is_live and index.is_new and path.exists():
            raise BadRequest(
                f"{path} cannot be continued without {index.path}, which is not there",
                field="output",
                reason="foreign",
                hint="--overwrite starts again",
            )
        for kept in self._output.kept():
            if not index.adopt(kept):
                line, question, _ = kept.key
                raise BadRequest(
                    f"output {path} and {index.path} are of different runs: they disagree "
                    f"about line {line}, question {question}",
                    field="output",
                    reason="other_input",
                    hint=f"delete {index.path} if the output is the right one",
                )
        index.drop_lost()
        if mode is OutputMode.RETRY_ERRORS:
            index.drop_errors()
        self._compare(self._facts())

    def _compare(self, facts: dict[str, object]) -> None:
        """Raises BadRequest if records that are kept were made with other facts."""
        before = self._index.settings if sum(self._index.num_kept) else {}
        # A list comes back from the index as one, where a tuple went in.
        other = [n for n in facts if n in before and _plain(facts[n]) != before[n]]
        if other:
            told = ", ".join(f"{n} was {before[n]!r}, is now {facts[n]!r}" for n in other)
            raise BadRequest(
                f"output {self._output.path} was made with other settings: {told}",
                field="output",
                reason="other_settings",
                hint="give the settings of that run, or another output; "
                "--overwrite starts again",
            )

    def _begin(self, facts: dict[str, object]) -> None:
        """From here on the index tells how far the run got. Changes: index, output."""
        self._has_begun = True
        if self._settings.mode is OutputMode.OVERWRITE and self._output.is_live:
            self._output.replace(())
        self._index.put_settings({**self._facts(), **facts})
        self._index.commit()
        if self._output.is_live and self._output.num_whole != sum(self._num_kept):
            self._output.replace(self._index.lines())

    def _finish(self) -> None:
        if not self._output.is_in_order:
            self._output.replace(self._index.lines())
        self._index.finish(is_kept_elsewhere=self._output.is_live)


def answer_file(
    client: Asker,
    source: Path,
    target: Path,
    settings: BatchSettings,
    on_progress: Progress | None = None,
) -> Summary:
    """A whole `BatchRun` with a client that is already there. Changes: `target`."""
    with BatchRun(source, target, settings) as run:
        return run.answer(client, on_progress)


def progress_path(target: Path) -> Path:
    """Where the index of an output is. Pure."""
    return target.with_name(f"{target.name}.progress")


def _model_facts(client: Asker | Elsewhere) -> dict[str, object]:
    """What an engine says of its model; nothing for what does not."""
    model = getattr(client, "model", None)
    fingerprint = getattr(model, "fingerprint", None)
    return {} if fingerprint is None else {"model_fingerprint": fingerprint.hex()}


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
