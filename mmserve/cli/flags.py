"""Flags made of the settings in `core.config`, so that each is declared once."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from typing import Annotated, Any, TypeVar

import typer

from mmserve.cli.pairs import PairReader
from mmserve.core import EngineConfig, MediaConfig, SchedConfig, ServerConfig

__all__ = ["ENGINE", "MODEL", "SERVER", "FlagGroup", "Settings", "with_settings"]


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FlagGroup:
    """Fields of a settings class that become flags; all that have a doc if `names` is None."""

    kind: type[Any]
    panel: str
    names: tuple[str, ...] | None = None

    def fields(self) -> tuple[Field[Any], ...]:
        """The chosen fields, in the order of declaration. Pure."""
        documented = (f for f in fields(self.kind) if "doc" in f.metadata)
        return tuple(f for f in documented if self.names is None or f.name in self.names)


_SHORT = ("model", "device", "dtype", "context_length", "threads")
MODEL = (FlagGroup(EngineConfig, "Model", _SHORT),)
"""The settings of an engine that a short run may want."""
ENGINE = (
    FlagGroup(EngineConfig, "Model and memory"),
    FlagGroup(SchedConfig, "Scheduler"),
    FlagGroup(MediaConfig, "Pictures and clips"),
)
"""All settings of an engine."""
SERVER = (FlagGroup(ServerConfig, "Server"), *ENGINE)
"""All settings of a server."""
_MAY_BE_ZERO = (
    "port",
    "max_redirects",
    "max_sweep_joiners",
    "feature_cache_tokens",
    "grammar_cache_bytes",
    "source_cache_bytes",
    "max_file_store_bytes",
    "response_store_bytes",
    "max_client_requests",
)


@dataclass(frozen=True, slots=True)
class Settings:
    """Values of flags by settings class."""

    values: Mapping[type[Any], Mapping[str, Any]]

    def engine(self) -> EngineConfig:
        """The engine's settings. Pure."""
        return EngineConfig(
            **self._of(EngineConfig),
            sched=self.of(SchedConfig),
            media=self.of(MediaConfig),
        )

    def of(self, kind: type[T]) -> T:
        """An object of a settings class, with the values of its flags. Pure."""
        return kind(**self._of(kind))

    def _of(self, kind: type[Any]) -> dict[str, Any]:
        given = self.values.get(kind, {})
        return {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}


def with_settings(groups: tuple[FlagGroup, ...]) -> Callable[[Callable[..., None]], Any]:
    """A decorator: the command's parameter `settings` is filled from a flag for each field.

    Help texts, defaults and lower limits are those of the settings classes. A setting that is
    on by default has a flag `--no-NAME`.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        owners = {f.name: group.kind for group in groups for f in group.fields()}
        on = {f.name for group in groups for f in group.fields() if f.default is True}

        @functools.wraps(command)
        def run(**given: Any) -> None:  # noqa: ANN401
            values: dict[type[Any], dict[str, Any]] = {}
            for name, kind in owners.items():
                own = values.setdefault(kind, {})
                own[name] = not given.pop(f"no_{name}") if name in on else given.pop(name)
            command(**given, settings=Settings(values))

        own = inspect.signature(command, eval_str=True).parameters.values()
        parameters = [p for p in own if p.name != "settings"]
        parameters += [_flag(group, f) for group in groups for f in group.fields()]
        # typer reads flags from the signature and the annotations, so both must say the same.
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return decorate


def _flag(group: FlagGroup, setting: Field[Any]) -> inspect.Parameter:
    kind = typing.get_type_hints(group.kind)[setting.name]
    default = setting.default
    assert default is not MISSING, setting.name  # noqa: S101
    shape: dict[str, Any] = {}
    if typing.get_origin(kind) is tuple:
        item, default = typing.get_args(kind)[0], list(default)
        if typing.get_origin(item) is tuple:
            reader = PairReader(typing.get_args(item)[1])
            item, shape = str, {"parser": reader.read, "metavar": reader.metavar}
        kind = list[item]  # type: ignore[valid-type]
    name, doc = setting.name, setting.metadata["doc"]
    if default is True:  # what is on can only be switched off
        name, doc, default = f"no_{name}", f"do not {doc}", False
    flag = setting.metadata.get("flag") or f"--{name.replace('_', '-')}"
    low = setting.metadata.get("low", _lowest(name, kind))
    high = setting.metadata.get("high")
    option = typer.Option(
        flag, help=doc, min=low, max=high, rich_help_panel=group.panel, **shape
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, option],
    )


def _lowest(name: str, kind: object) -> int | None:
    """The least value of a number: whole ones count or measure something, few may be 0."""
    kinds = (kind, *typing.get_args(kind))
    if int in kinds:
        return 0 if name in _MAY_BE_ZERO else 1
    return 0 if float in kinds else None
