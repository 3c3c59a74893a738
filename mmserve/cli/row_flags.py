"""Flags that say how the rows of a batch file are read; files they name are read here."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mmserve.batch import RowSettings
from mmserve.core import BadRequest

__all__ = ["RowFlags"]


def _flag(default: Any, doc: str, low: int | None = None, high: int | None = None) -> Any:  # noqa: ANN401
    return field(default=default, metadata={"doc": doc, "low": low, "high": high})


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFlags:
    """How the rows are read."""

    format: Literal["jsonl", "csv", "parquet"] | None = _flag(
        None, "of the rows, if the name does not tell it"
    )
    template: str | None = _flag(None, "Jinja text that makes a question of a row, or @FILE")
    question: tuple[str, ...] = _flag((), "asked of every row that has no question")
    question_file: str | None = _flag(
        None, "questions for such rows, one a line or a JSON list"
    )
    num_samples: int = _flag(1, "answers to a question, where the row has no n", 1, 128)
    extra_fields: Literal["refuse", "ignore"] = _flag(
        "refuse", "what to do with a field that nobody reads"
    )

    def settings(self) -> RowSettings:
        """The settings, with what the files hold in place of their names.

        Raises BadRequest: a file cannot be read or holds no questions. Cost: reads them.
        """
        return RowSettings(
            format=self.format,
            template=_template(self.template),
            questions=self._questions(),
            num_samples=self.num_samples,
            extra_fields=self.extra_fields,
        )

    def _questions(self) -> tuple[str, ...]:
        if self.question and self.question_file is not None:
            message = "--question and --question-file are both given"
            raise BadRequest(message, field="question", reason="several", hint="give one")
        questions = self.question
        if self.question_file is not None:
            questions = _questions_of(Path(self.question_file))
        for at, text in enumerate(questions):
            if not text.strip():
                message = f"question {at} is empty"
                raise BadRequest(message, field="question", reason="empty")
        return questions


def _template(given: str | None) -> str | None:
    is_file = given is not None and given.startswith("@")
    return _text_of(Path(given[1:]), "template") if given and is_file else given


def _text_of(path: Path, field_name: str) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        reason = error.strerror or type(error).__name__
    except UnicodeDecodeError as error:
        reason = f"not UTF-8 at byte {error.start + 1}"
    message = f"{field_name} {path}: {reason}"
    raise BadRequest(message, field=field_name, reason="unreadable")


def _questions_of(path: Path) -> tuple[str, ...]:
    text = _text_of(path, "question_file")
    if text.lstrip().startswith("["):
        questions = _listed(path, text)
    else:
        questions = [line.strip() for line in text.splitlines() if line.strip()]
    if not questions:
        message = f"question file {path} holds no question"
        raise BadRequest(message, field="question_file", reason="empty")
    return tuple(questions)


def _listed(path: Path, text: str) -> list[str]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        found, reason = None, str(error)
    else:
        reason = "an entry is no text"
    if isinstance(found, list) and all(isinstance(entry, str) for entry in found):
        return found
    raise BadRequest(
        f"question file {path} begins like a JSON list, but: {reason}",
        field="question_file",
        reason="json",
        hint='write ["Who?", "Where?"], or one question a line',
    )
