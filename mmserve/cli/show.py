"""`mmserve show`: a part of the engine draws what it holds, here or at a server."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mmserve.batch.remote import error_of
from mmserve.cli import console
from mmserve.cli.constrained import (
    CONSTRAINED,
    ConstrainedFlags,
    check_unused,
    draw_constrained,
)
from mmserve.cli.engines import opener_of
from mmserve.cli.flags import MODEL, FlagGroup, Settings, with_settings
from mmserve.cli.samples import load_samples, sample_request
from mmserve.cli.vision import look_json, part_of, say_look
from mmserve.core import BackendFailed, BadRequest, EngineConfig, MmserveError

if TYPE_CHECKING:
    import httpx

__all__ = ["Room", "ShowFlags", "show"]

_CONNECT_S = 10.0
_ANSWER_S = 60.0
_TYPES = {"text": "text/plain", "svg": "image/svg+xml"}
_OK = 200
_KEY = (401, 403)
_NO_DRAWING = (200, 301, 302, 307, 308, 404, 405)

Form = Literal["text", "svg"]


class Room(Enum):
    """Parts that can draw themselves."""

    RADIX = "radix"
    SCHED = "sched"
    VISION = "vision"
    CONSTRAINED = "constrained"


def _flag(doc: str) -> Any:  # noqa: ANN401
    return field(default=None, metadata={"doc": doc})


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowFlags:
    """What to look at, and where the drawing goes."""

    url: str | None = _flag("server to look into, in place of a small example")
    api_key: str | None = _flag("key for that server")
    svg: str | None = _flag("draw for a browser: write an SVG file here, or - for stdout")
    num_frames: int | None = _flag("vision: frames of a clip to look at")
    fps: float | None = _flag("vision: frames a second of a clip to look at")


@with_settings((FlagGroup(ShowFlags, "Drawing"), *CONSTRAINED, *MODEL))
def show(
    ctx: typer.Context,
    room: Annotated[
        Room,
        typer.Argument(
            help="radix: what is cached; sched: who ran when; vision: encoded media, or what "
            "the model will see of a file; constrained: an automaton and the steps of an "
            "answer, or a server's grammars."
        ),
    ],
    file: Annotated[
        Path | None, typer.Argument(help="vision: a picture or clip to look at.")
    ] = None,
    *,
    settings: Settings,
) -> None:
    """Draw what a part of the engine holds: of a server, or of a small example.

    In the example ten questions about the sample media are asked at once, and the drawing is
    made after the last answer; for constrained it is one answer of one form, and for vision
    with a file what the model will see of it. Examples: mmserve show radix; mmserve show sched
    --svg steps.svg; mmserve show vision photo.jpg; mmserve show sched --url
    http://127.0.0.1:30000; mmserve show constrained --regex "(yes|no), because .{1,40}"
    """
    flags, config = settings.of(ShowFlags), settings.engine()
    is_json = settings.of(ConstrainedFlags).json
    form: Form = "text" if flags.svg is None else "svg"
    is_look = file is not None or flags.num_frames is not None or flags.fps is not None
    if is_look:
        check_unused(settings, but="json")
    elif room is not Room.CONSTRAINED or flags.url is not None:
        check_unused(settings)
    if is_json and form == "svg":
        message = "--json and --svg are both given"
        raise BadRequest(message, field="json", reason="several", hint="give one of them")
    if is_look:
        _look(ctx, file, room, flags, config, is_json=is_json)
        return
    if flags.url is not None:
        drawing = _draw_server(flags, config, room.value, form)
    elif room is Room.CONSTRAINED:
        with opener_of(ctx)(config) as client:
            drawing = draw_constrained(client, settings, "json" if is_json else form)
    else:
        drawing = _draw_example(ctx, config, room.value, form)
    if flags.svg is None or flags.svg == "-":
        console.say(drawing.rstrip("\n"))
    else:
        Path(flags.svg).write_text(drawing, encoding="utf-8")
        console.note(f"{flags.svg} is written, a browser shows it")


def _look(
    ctx: typer.Context,
    file: Path | None,
    room: Room,
    flags: ShowFlags,
    config: EngineConfig,
    *,
    is_json: bool,
) -> None:
    """Print what the model will see of a file."""
    is_here = flags.url is None and flags.svg is None
    if file is None or room is not Room.VISION or not is_here:
        message = "a file to look at goes with vision alone, without --url and --svg"
        hint = "mmserve show vision FILE [--num-frames N] [--fps R] [--json]"
        raise BadRequest(message, field="file", reason="several", hint=hint)
    with opener_of(ctx)(config) as client:
        look = client.look(part_of(file, flags.num_frames, flags.fps))
    if is_json:
        console.say_json(look_json(look))
    else:
        say_look(look)


def _draw_server(flags: ShowFlags, config: EngineConfig, room: str, form: Form) -> str:
    if config != EngineConfig():
        message = "--url is given, and flags of an engine"
        raise BadRequest(message, field="url", reason="several", hint="give one of them")
    return _fetch(flags.url or "", flags.api_key, room, form)


def _draw_example(ctx: typer.Context, config: EngineConfig, room: str, form: Form) -> str:
    with opener_of(ctx)(config) as client:
        tickets = []
        for sample in load_samples():
            for index in range(len(sample.questions)):
                request = sample_request(f"show-{sample.name}-{index}", sample, index)
                tickets.append(client.submit(replace(request, client=sample.name)))
        for _ in itertools.chain.from_iterable(ticket.outputs() for ticket in tickets):
            pass
        return client.drawing(room, form)


def _fetch(url: str, api_key: str | None, room: str, form: Form) -> str:
    """A server's drawing. Raises BackendFailed if there is none, or what the server says."""
    import httpx  # noqa: PLC0415 - takes 0.1 s, and the example does without

    headers = {b"Authorization": f"Bearer {api_key}".encode()} if api_key else {}
    timeout = httpx.Timeout(_ANSWER_S, connect=_CONNECT_S)
    try:
        with httpx.Client(headers=headers, timeout=timeout, trust_env=False) as http:
            response = http.get(f"{url.rstrip('/')}/show/{room}", params={"format": form})
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        message = f"cannot reach {url}: {str(error) or type(error).__name__}"
        raise BackendFailed(message, hint="is the server running?", status=None) from error
    kind = response.headers.get("content-type", "").partition(";")[0]
    if response.status_code == _OK and kind == _TYPES[form]:
        return response.text
    raise _refusal(url, response, has_key=api_key is not None)


def _refusal(url: str, response: httpx.Response, *, has_key: bool) -> MmserveError:
    status = response.status_code
    if status in _KEY:
        message = f"{url} refuses the API key" if has_key else f"{url} wants an API key"
        return BackendFailed(message, hint="give it with --api-key", status=status)
    if status in _NO_DRAWING:
        message = f"{url} answers with status {status}, and no drawing"
        hint = "is it an mmserve server, of this version?"
        return BackendFailed(message, hint=hint, status=status)
    try:
        body = response.json()
    except ValueError:
        body = None
    return error_of(status, body, response.headers.get("retry-after"))
