"""`mmserve ask`: one-shot questions about pictures and clips."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from mmserve.batch import AskSettings, media_source
from mmserve.cli import console
from mmserve.cli.engines import opener_of
from mmserve.cli.flags import MODEL, FlagGroup, Settings, with_settings
from mmserve.core import (
    Aborted,
    BadRequest,
    Constraint,
    ImagePart,
    MmserveError,
    Request,
    SamplingParams,
    TextPart,
    Ticket,
    Turn,
    Usage,
    VideoPart,
)

__all__ = ["AnswerForm", "ask", "read_constraint"]

Media = tuple[ImagePart | VideoPart, ...]


def _flag(doc: str) -> Any:  # noqa: ANN401
    return field(default=None, metadata={"doc": doc})


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForm:
    """What each answer must match; at most one is given."""

    json_schema: str | None = _flag("JSON schema of the answer: a file, or the JSON itself")
    regex: str | None = _flag("pattern that the whole answer matches")
    choices: str | None = _flag("options the answer is one of, separated by commas")
    ebnf: str | None = _flag("grammar of the answer: a file, or the grammar itself")


FLAGS = (FlagGroup(AskSettings, "Answers"), FlagGroup(AnswerForm, "Answers"), *MODEL)


@with_settings(FLAGS)
def ask(
    ctx: typer.Context,
    questions: Annotated[list[str], typer.Argument(help="each is answered on its own")],
    *,
    image: Annotated[
        list[str] | None, typer.Option(help="picture, path or address; may be repeated")
    ] = None,
    video: Annotated[
        list[str] | None, typer.Option(help="clip, path or address; may be repeated")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="answers only")] = False,
    settings: Settings,
) -> None:
    """Answer questions about pictures and clips.

    Answers go to stdout, one after the other, in the order of the questions. The media come
    before each question, pictures first, and are read, encoded and prefilled once for all.
    """
    asked = settings.of(AskSettings)
    pictures = [ImagePart(media_source(place)) for place in image or ()]
    clips = [
        VideoPart(media_source(place), num_frames=asked.num_frames, fps=asked.fps)
        for place in video or ()
    ]
    sampling = SamplingParams(
        max_new_tokens=asked.max_tokens,
        temperature=asked.temperature,
        constraint=read_constraint(settings.of(AnswerForm)),
    )
    with opener_of(ctx)(settings.engine()) as client:
        began_s = time.monotonic()
        tickets = [
            client.submit(_request(f"ask-{index}", (*pictures, *clips), question, sampling))
            for index, question in enumerate(questions)
        ]
        usages = [_print_answer(ticket, number) for number, ticket in enumerate(tickets, 1)]
        seconds = time.monotonic() - began_s
    answered = [usage for usage in usages if usage is not None]
    if not quiet:
        console.note(_closing_line(answered, seconds))
    if len(answered) < len(usages):
        raise typer.Exit(1)


def read_constraint(form: AnswerForm) -> Constraint | None:
    """The one constraint that is asked for; reads the schema's file. Raises BadRequest."""
    given = [name for name, value in asdict(form).items() if value is not None]
    if len(given) > 1:
        message = f"{' and '.join(map(_flag_name, given))} are both given"
        raise BadRequest(message, field=given[0], reason="several", hint="give one of them")
    if form.regex is not None:
        return Constraint("regex", form.regex)
    if form.choices is not None:
        options = [option.strip() for option in form.choices.split(",")]
        return Constraint("choices", json.dumps(options, ensure_ascii=False))
    if form.json_schema is not None:
        return Constraint("json_schema", _schema_text(form.json_schema))
    if form.ebnf is not None:
        return Constraint("ebnf", _grammar_text(form.ebnf))
    return None


def _flag_name(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _schema_text(given: str) -> str:
    text = given if given.lstrip().startswith("{") else Path(given).read_text(encoding="utf-8")
    try:
        json.loads(text)
    except ValueError as error:
        message = f"--json-schema is not JSON: {error}"
        raise BadRequest(message, field="json_schema", reason="not_json") from None
    return text


def _grammar_text(given: str) -> str:
    is_grammar = "::=" in given or "\n" in given
    return given if is_grammar else Path(given).read_text(encoding="utf-8")


def _request(request_id: str, media: Media, question: str, sampling: SamplingParams) -> Request:
    user = Turn("user", (*media, TextPart(question)))
    return Request(
        request_id=request_id,
        parts=(user, Turn("assistant", (), is_open=True)),
        sampling=sampling,
        client="ask",
    )


def _print_answer(ticket: Ticket, number: int) -> Usage | None:
    """Print the answer as it comes; gives None, after a message, if there is none."""
    usage = None
    has_text = False
    try:
        for output in ticket.outputs():
            console.say_piece(output.text)
            has_text = has_text or bool(output.text)
            if output.finish is not None and output.finish.reason in ("error", "abort"):
                raise output.finish.error or Aborted("the answer was stopped before its end")
            usage = output.usage
    except MmserveError as error:
        if has_text:
            console.say()
        console.note(f"question {number}:")
        console.fail(error)
        return None
    console.say()
    return usage


def _closing_line(usages: list[Usage], seconds: float) -> str:
    prompt = sum(usage.prompt_tokens for usage in usages)
    cached = sum(usage.cached_tokens for usage in usages)
    noun = "answer" if len(usages) == 1 else "answers"
    return (
        f"{len(usages)} {noun} in {seconds:.2f} s; "
        f"{cached:,} of {prompt:,} prompt tokens from cache"
    )
