"""A whole run: check input and output before anything is asked or changed, then answer."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from mmserve.batch.answering import Answering, BatchSettings, Progress
from mmserve.batch.asker import Asker
from mmserve.batch.output import OutputFile
from mmserve.batch.rows import numbered_lines, parse_row
from mmserve.batch.summary import Summary, Tally
from mmserve.core import BadRequest

__all__ = ["BatchRun", "answer_file"]


class BatchRun:
    """A checked input and its locked output; use as a context manager.

    Args:
        source: the rows, see `parse_row`.
        target: the records, see `record_line`, in the order of `source`; questions that are
            asked again with `OutputMode.RETRY_ERRORS` come after the records that were kept.
        settings: how to run it.

    Raises BadRequest if `target` holds records and the mode forbids them, or they are not about
    this `source`; Busy if another run writes `target`. Then `target` is as it was.
    Cost: reads both files once.
    """

    def __init__(self, source: Path, target: Path, settings: BatchSettings) -> None:
        if target.exists() and source.samefile(target):
            message = f"input and output are the same file, {target}"
            raise BadRequest(message, field="output", reason="same_file")
        self._source = source
        self._settings = settings
        self._tally: Tally | None = None
        self._output = OutputFile(target, settings.mode)
        try:
            self._num_questions = _survey(source, self._output)
        except BaseException:
            self._output.close()
            raise

    @property
    def num_left(self) -> int:
        """Questions that have no record yet. Pure."""
        return self._num_questions - len(self._output.kept)

    def answer(self, client: Asker, on_progress: Progress | None = None) -> Summary:
        """Answer what is left, one record a question. Call it once.

        A row that cannot be answered gives error records and the run goes on. On any exception,
        also KeyboardInterrupt, questions under way are cancelled and the output holds whole
        records. `on_progress` is called at the start and after each record.

        Changes: the output.
        Raises Broken if the engine keeps failing.
        Memory: one entry for each kept record, and what is under way.
        """
        self._output.begin()
        tally = Tally.of(self._num_questions, self._output.kept.values())
        self._tally = tally
        answering = Answering(client, self._output, self._settings, tally, on_progress)
        try:
            answering.do(self._source)
        finally:
            answering.cancel()
        return tally.summary()

    def tally(self) -> Tally:
        """Counts so far; while the run works it goes on counting. Pure."""
        return self._tally or Tally.of(self._num_questions, self._output.kept.values())

    def summary(self) -> Summary:
        """Sums so far. Pure."""
        return self.tally().summary()

    def close(self) -> None:
        """Give the output back. Idempotent."""
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


def _survey(source: Path, output: OutputFile) -> int:
    """Number of questions in the input. Raises BadRequest if a kept record is about another."""
    total, num_seen = 0, 0
    for line, content in numbered_lines(source):
        row = parse_row(line, content)
        total += len(row.questions)
        for index, question in enumerate(row.questions):
            kept = output.kept.get((line, index))
            if kept is None:
                continue
            num_seen += 1
            if (kept.question, kept.row_id) != (question, row.row_id):
                raise _other_input(output, f"line {line}, question {index}, has changed")
    if num_seen < len(output.kept):
        lost = len(output.kept) - num_seen
        raise _other_input(output, f"{lost} of its questions are not in the input")
    return total


def _other_input(output: OutputFile, reason: str) -> BadRequest:
    return BadRequest(
        f"output {output.path} is of another input: {reason}",
        field="output",
        reason="other_input",
        hint="--retry-errors asks failed rows again, --overwrite starts again",
    )
