"""The rows of a file: each a checked row, or everything that is wrong with it.

Reading is strict: a field that is unknown, of another type or out of range makes the row fail,
because a row answered under other settings than its writer meant looks like a good one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from mmserve.batch.formats import Columns, RawRow, format_of, open_rows
from mmserve.batch.json_text import json_object, json_value
from mmserve.batch.row import Row, RowFault
from mmserve.batch.row_fields import RowFields
from mmserve.batch.settings import AskSettings, RowSettings
from mmserve.batch.values import CHECKS, CONSTRAINTS, Fault
from mmserve.core import BadRequest

if TYPE_CHECKING:
    from mmserve.batch.templates import QuestionTemplate

__all__ = ["RowParser", "Rows", "parse_row"]


class RowParser:
    """Rows as the settings of a file read them.

    Raises BadRequest: settings that no row could be read under.
    """

    def __init__(self, settings: RowSettings, ask: AskSettings) -> None:
        self._settings = settings
        self._ask = ask
        self._template = None if settings.template is None else _compiled(settings.template)
        names = self._template.names if self._template else frozenset()
        self.known = frozenset(CHECKS) | names
        self.is_ignoring = settings.extra_fields == "ignore"
        _check_questions(settings, self._template)
        _check_silent(ask)
        if settings.num_samples > 1 and ask.temperature == 0:
            raise BadRequest(
                f"{settings.num_samples} answers to each question at temperature 0 would all "
                "be the same",
                field="num_samples",
                reason="greedy",
                hint="--temperature 0.7 draws different ones",
            )

    def parse(self, line: int, content: bytes, *, is_of_table: bool = False) -> Row | RowFault:
        """The row that `content` spells, or what is wrong with it. Pure.

        Of a table, a JSON text in place of an object says what is wrong.
        """
        try:
            if is_of_table and content.startswith(b'"'):
                raise Fault(json_value(content.decode()))
            fields = RowFields(json_object(content))
        except Fault as fault:
            return _fault(line, str(fault))
        return self._row(line, fields)

    def _row(self, line: int, fields: RowFields) -> Row | RowFault:
        values = {name: fields.read(name, check) for name, check in CHECKS.items()}
        is_conversation = values["turns"] is not None
        values["questions"] = fields.questions(self._template, self._settings.questions)
        fields.check_media()
        values["constraint"] = fields.constraint()
        fields.check_window()
        num_samples = fields.num_samples(self._settings.num_samples, self._ask.temperature)
        if not self.is_ignoring:
            fields.check_unknown(self.known)
        row_id = values.pop("id")
        if fields.faults:
            message = "; ".join(fields.faults)
            return _fault(line, message, row_id, values["questions"])
        for name in ("question", "turns", "n", *CONSTRAINTS):
            values.pop(name)
        values["images"] = values["images"] or ()
        return Row(
            line=line,
            row_id=_given_or_line(row_id, line),
            is_conversation=is_conversation,
            num_samples=num_samples,
            **values,
        )


class Rows:
    """The rows of a file, to be gone through as often as wanted.

    Args:
        path: JSON lines, CSV or Parquet.
        settings: how they are read.
        ask: what holds for silent rows; several samples need a temperature.

    Raises BadRequest before any row is read: the file is not of its format, a table has a
    column nobody reads, the template does not compile, settings contradict each other. A table
    may be found damaged farther on, while it is gone through.
    """

    def __init__(
        self,
        path: Path,
        settings: RowSettings | None = None,
        ask: AskSettings | None = None,
    ) -> None:
        settings = RowSettings() if settings is None else settings
        self._parser = RowParser(settings, AskSettings() if ask is None else ask)
        name = format_of(path, settings.format)
        self._is_table = name != "jsonl"
        columns = Columns(self._parser.known, is_ignoring=self._parser.is_ignoring)
        self._source = open_rows(path, name, columns)

    def __iter__(self) -> Iterator[RawRow]:
        return iter(self._source)

    def parse(self, raw: RawRow) -> Row | RowFault:
        """The row, or what is wrong with it. Pure."""
        return self._parser.parse(raw.line, raw.content, is_of_table=self._is_table)


def parse_row(line: int, content: bytes) -> Row | RowFault:
    """The row that a line of JSON spells by itself, or what is wrong with it. Pure."""
    return RowParser(RowSettings(), AskSettings()).parse(line, content)


def _compiled(template: str) -> QuestionTemplate:
    from mmserve.batch.templates import QuestionTemplate  # noqa: PLC0415 - loads Jinja, 12 ms

    return QuestionTemplate(template)


def _check_silent(ask: AskSettings) -> None:
    """Raises BadRequest if no row could have what holds for silent ones."""
    for name, value in asdict(ask).items():
        try:
            if value is not None:
                CHECKS[name](value)
        except Fault as fault:
            raise BadRequest(f"{name} {fault}", field=name, reason="range") from None


def _check_questions(settings: RowSettings, template: QuestionTemplate | None) -> None:
    """Raises BadRequest if questions are given that would not be asked."""
    if template is None or template.uses_question or not settings.questions:
        return
    raise BadRequest(
        "questions are given for every row, but the template asks without them",
        field="template",
        reason="unused_question",
        hint="write {{ question }} into the template, or leave the questions out",
    )


def _fault(
    line: int,
    message: str,
    row_id: str | int | None = None,
    questions: tuple[str, ...] = (),
) -> RowFault:
    return RowFault(
        line=line,
        row_id=_given_or_line(row_id, line),
        questions=tuple(text or None for text in questions) or (None,),
        message=f"line {line}: {message}",
    )


def _given_or_line(row_id: str | int | None, line: int) -> str | int:
    return f"line-{line}" if row_id is None else row_id
