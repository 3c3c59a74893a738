"""`mmserve show constrained`: an automaton, and an answer's steps through it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mmserve.cli.ask import AnswerForm, read_constraint
from mmserve.cli.flags import FlagGroup, Settings
from mmserve.cli.samples import load_samples
from mmserve.core import (
    BadRequest,
    Client,
    Constraint,
    ImagePart,
    PathSource,
    Request,
    SamplingParams,
    TextPart,
    Turn,
)

__all__ = ["CONSTRAINED", "EXAMPLE", "ConstrainedFlags", "check_unused", "draw_constrained"]

EXAMPLE = Constraint(
    "regex",
    r'\{"shape":"(circle|square|triangle|star|cross)",'
    r'"colour":"(red|green|blue|yellow|orange|purple)","size":"(small|medium|large)"\}',
)
_QUESTION = "What is at the left?"
_MAX_TOKENS = 64
_MAX_PLACES = {"text": 24, "svg": 40, "json": 1_000}


def _flag(doc: str) -> Any:  # noqa: ANN401
    return field(default=None, metadata={"doc": doc})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstrainedFlags:
    """Whose answer is drawn; at most one of the first three is given."""

    answer: str | None = _flag("answer to follow, or the beginning of one")
    seed: int | None = field(
        default=None, metadata={"doc": "draw the answer's tokens at random, alike", "low": 0}
    )
    prompt: str | None = _flag("ask the model this, about the sample picture if it sees any")
    json: bool = field(default=False, metadata={"doc": "print one JSON object"})


CONSTRAINED = (
    FlagGroup(AnswerForm, "Constrained"),
    FlagGroup(ConstrainedFlags, "Constrained"),
)


def check_unused(settings: Settings, *, but: str | None = None) -> None:
    """Raise BadRequest if a flag of a constrained answer is given, other than `but`."""
    given = asdict(settings.of(AnswerForm)) | asdict(settings.of(ConstrainedFlags))
    for name, value in given.items():
        if value not in (None, False) and name != but:
            flag = f"--{name.replace('_', '-')}"
            message = f"{flag} is for `mmserve show constrained` without --url"
            raise BadRequest(message, field=name, reason="unused")


def draw_constrained(client: Client, settings: Settings, form: str) -> str:
    """The drawing that the flags ask for, as "text", "svg" or "json".

    Args:
        client: an engine in this process; its model's tokens are used, and perhaps the model.
        settings: the flags.
        form: what to make.

    Raises BadRequest, or what the constraint or the model's answer is refused with.
    """
    from mmserve.constrained import GrammarCompiler  # noqa: PLC0415 - loads numpy
    from mmserve.constrained.show import (  # noqa: PLC0415 - loads numpy
        check_followed,
        draw_picture,
        draw_text,
        drawn_at_random,
        drawn_from,
        graph_of,
        walk,
    )
    from mmserve.constrained.vocabulary import Vocabulary  # noqa: PLC0415 - loads numpy
    from mmserve.prompt import load_tokenizer  # noqa: PLC0415 - loads numpy

    flags = settings.of(ConstrainedFlags)
    _check_source(flags)
    constraint = read_constraint(settings.of(AnswerForm)) or EXAMPLE
    tokenizer = load_tokenizer(Path(client.model.path))
    model_tokens: dict[str, Any] = {
        "eos_token_ids": client.model.eos_token_ids,
        "vocab_size": client.model.vocab_size,
        "special_ids": tokenizer.control_ids,
        "encode": tokenizer.encode_onward,
    }
    compiler = GrammarCompiler(tokenizer.pieces, **model_tokens)
    vocabulary = Vocabulary(tokenizer.pieces, **model_tokens)
    matcher = compiler.compile(constraint)()
    automaton = next((one.automaton for one in compiler.kept()), None)
    text = flags.answer
    if text is None and flags.seed is None:
        text = _ask(client, constraint, flags.prompt)
    if text is None:
        draw, most = drawn_at_random(flags.seed or 0), _MAX_TOKENS
    else:
        draw, most = drawn_from(text, vocabulary), len(text.encode()) + 1
    way = walk(matcher, vocabulary, draw, max_steps=most, automaton=automaton)
    if text is not None:
        check_followed(text, way)
    graph = None if automaton is None else graph_of(automaton, _MAX_PLACES[form])
    if form == "json":
        parts = {"constraint": constraint, "automaton": graph, "answer": way}
        told = {name: None if part is None else asdict(part) for name, part in parts.items()}
        return json.dumps(told, indent=2, ensure_ascii=False)
    return (draw_text if form == "text" else draw_picture)(constraint, graph, way)


def _check_source(flags: ConstrainedFlags) -> None:
    sources = {"answer": flags.answer, "seed": flags.seed, "prompt": flags.prompt}
    given = [name for name, value in sources.items() if value is not None]
    if len(given) > 1:
        message = f"{' and '.join(f'--{name}' for name in given)} are both given"
        raise BadRequest(message, field=given[0], reason="several", hint="give one of them")


def _ask(client: Client, constraint: Constraint, prompt: str | None) -> str:
    """The model's own answer. Raises what it fails with."""
    media: tuple[ImagePart, ...] = ()
    if client.model.has_images:
        picture = next(one for one in load_samples() if one.kind == "image")
        media = (ImagePart(PathSource(str(picture.path))),)
    user = Turn("user", (*media, TextPart(_QUESTION if prompt is None else prompt)))
    request = Request(
        request_id="show-constrained",
        parts=(user, Turn("assistant", (), is_open=True)),
        sampling=SamplingParams(
            max_new_tokens=_MAX_TOKENS, temperature=0.0, constraint=constraint
        ),
        client="show",
    )
    text = ""
    for output in client.submit(request).outputs():
        text += output.text
        if output.finish is not None and output.finish.error is not None:
            raise output.finish.error
    return text
