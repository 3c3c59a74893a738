"""What is compared by `mmserve drift`: an endpoint's address, or settings to open here.

    http://127.0.0.1:8000
    url=http://127.0.0.1:8000,model=qwen,temperature=1,seed=3
    model=tabletop,chunk_tokens=64,radix_cache=off,system="Be brief, please."

Words that say how a side is asked fit both kinds. All others are settings of an engine, under
the names that `mmserve serve` has flags for, and are read by those flags.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import typer

from mmserve.batch.drift import ChatSide, Manner
from mmserve.cli.engines import OpenEngine
from mmserve.cli.flags import ENGINE, Settings, with_settings
from mmserve.core import BadRequest, EngineConfig, ServerConfig

__all__ = ["SideSpec", "open_side", "read_side"]

_ADDRESS = ("http://", "https://")
_ASKED = ("temperature", "seed", "system")
_ENDPOINT = ("url", "api_key", "model")
_SWITCH = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class SideSpec:
    """One side as the command line names it.

    Args:
        label: what reports call it; holds no key.
        manner: how it is asked.
        url: of an endpoint; None for settings to be opened here.
        api_key, model: of that endpoint.
        config: the settings to be opened here.
    """

    label: str
    manner: Manner
    url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    model: str | None = None
    config: EngineConfig = field(default_factory=EngineConfig)


@contextmanager
def open_side(spec: SideSpec, open_engine: OpenEngine) -> Iterator[ChatSide]:
    """The side, ready to be asked: settings of our own become a server on a free port.

    Raises BackendFailed where an endpoint is not there.
    """
    if spec.url is not None:
        with ChatSide(
            spec.url, api_key=spec.api_key, model=spec.model, manner=spec.manner
        ) as side:
            yield side
        return
    from mmserve.server import RunningServer  # noqa: PLC0415 - an endpoint needs no server

    with (
        open_engine(spec.config) as client,
        RunningServer(client, ServerConfig(port=0)) as server,
        ChatSide(server.url, manner=spec.manner) as side,
    ):
        yield side


def read_side(flag: str, words: str, max_tokens: int) -> SideSpec:
    """What `words` name. Pure. Raises BadRequest with the flag and the word."""
    values = _values(flag, words)
    manner = _manner(flag, values, max_tokens)
    label = ",".join(
        f"{name}={'***' if name == 'api_key' else value}" for name, value in values.items()
    )
    if "url" in values:
        for name in values:
            if name not in (*_ENDPOINT, *_ASKED):
                raise _unknown(flag, name, (*_ENDPOINT, *_ASKED), "an endpoint")
        return SideSpec(
            label=label.removeprefix("url="),
            manner=manner,
            url=values["url"],
            api_key=values.get("api_key"),
            model=values.get("model"),
        )
    settings = {name: value for name, value in values.items() if name not in _ASKED}
    return SideSpec(label=label, manner=manner, config=_config(flag, settings))


def _values(flag: str, words: str) -> dict[str, str]:
    """Name and value of each word; a comma inside of quotes does not part them."""
    lexer = shlex.shlex(words, posix=True)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = ",", True, ""
    try:
        pieces = list(lexer)
    except ValueError:
        message = f"{flag} has a quotation mark without its pair"
        raise BadRequest(message, field=flag, reason="quotes") from None
    values: dict[str, str] = {}
    for piece in pieces:
        text = f"url={piece}" if piece.lower().startswith(_ADDRESS) else piece
        name, sign, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not (name and sign):
            message = f"{flag} has {piece[:60]!r}, which is neither an address nor name=value"
            hint = "for example http://127.0.0.1:8000, or model=tabletop,chunk_tokens=64"
            raise BadRequest(message, field=flag, reason="form", hint=hint)
        if name in values:
            message = f"{flag} names {name} twice"
            raise BadRequest(message, field=flag, reason="several")
        values[name] = value
    if not values:
        hint = "give an address or settings, for example model=tabletop"
        raise BadRequest(f"{flag} is empty", field=flag, reason="empty", hint=hint)
    return values


def _manner(flag: str, values: dict[str, str], max_tokens: int) -> Manner:
    temperature, seed = values.get("temperature"), values.get("seed")
    try:
        return Manner(
            temperature=0.0 if temperature is None else float(temperature),
            seed=None if seed is None else int(seed),
            system=values.get("system"),
            max_tokens=max_tokens,
        )
    except ValueError:
        message = f"{flag} has temperature={temperature} and seed={seed}, which are no numbers"
        hint = "temperature takes a number, seed a whole one"
        raise BadRequest(message, field=flag, reason="value", hint=hint) from None


def _config(flag: str, values: dict[str, str]) -> EngineConfig:
    """Settings of an engine, read by the flags that `mmserve serve` has."""
    defaults = {spec.name: spec.default for group in ENGINE for spec in group.fields()}
    words: list[str] = []
    for name, value in values.items():
        if name not in defaults:
            raise _unknown(flag, name, (*defaults, *_ASKED), "an engine")
        words += _flag_words(flag, name, value, defaults[name])
    found: list[EngineConfig] = []

    @with_settings(ENGINE)
    def side(*, settings: Settings) -> None:
        found.append(settings.engine())

    app = typer.Typer(add_completion=False)
    app.command()(side)
    try:
        typer.main.get_command(app).main(words, prog_name=flag, standalone_mode=False)
    except typer.BadParameter as error:
        message = f"{flag}: {error.format_message()}"
        raise BadRequest(message, field=flag, reason="value") from None
    return found[0]


def _flag_words(flag: str, name: str, value: str, default: object) -> list[str]:
    dashed = name.replace("_", "-")
    if not isinstance(default, bool):
        return [f"--{dashed}={value}"]
    wanted = _SWITCH.get(value.lower())
    if wanted is None:
        message = f"{flag} has {name}={value}, allowed is on or off"
        raise BadRequest(message, field=flag, reason="value")
    if wanted is default:
        return []
    return [f"--no-{dashed}" if default else f"--{dashed}"]


def _unknown(flag: str, name: str, known: tuple[str, ...], whose: str) -> BadRequest:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(known)}"
    message = f"{flag} names {name[:60]!r}, which is no setting of {whose}"
    return BadRequest(message, field=flag, reason="unknown", hint=hint)
