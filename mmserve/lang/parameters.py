"""Parameters of `gen` and `run`, derived from `core.SamplingParams`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TypedDict

from mmserve.core import BadRequest, SamplingParams, check_sampling
from mmserve.lang.texts import whole_text

__all__ = [
    "RUN_NAMES",
    "CallOptions",
    "PlainOptions",
    "asked_names",
    "checked_changes",
    "run_options",
]

_ANY_VOCABULARY = 2**63

# The language's word for a field of SamplingParams, where it is another one.
_RENAMED = {
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "logprob_start_len": "prompt_logprobs_from",
    "top_logprobs_num": "top_logprobs",
    "stop_regex": "stop_patterns",
}
_SAME = (
    "max_new_tokens",
    "n",
    "stop",
    "stop_token_ids",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "ignore_eos",
    "seed",
)
_SAMPLING_FIELDS = {spec.name: spec for spec in fields(SamplingParams)}
_WORDS = {name: name for name in _SAME} | {field: word for word, field in _RENAMED.items()}
_OWN = ("return_logprob", "return_text_in_logprobs", "timeout_s")
_RUN_ONLY = ("cache_salt", "priority")

RUN_NAMES = frozenset(
    {*_SAME, *_OWN, *_RUN_ONLY, "logprob_start_len", "stop_regex", "top_logprobs_num"}
    - {"repetition_penalty"}
)


class PlainOptions(TypedDict, total=False):
    """Keyword parameters that all gens share; None or absent inherits."""

    stop_regex: str | list[str] | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    ignore_eos: bool | None
    return_logprob: bool | None
    logprob_start_len: int | None
    top_logprobs_num: int | None
    return_text_in_logprobs: bool | None
    repetition_penalty: float | None
    seed: int | None
    timeout_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """Everything about a call but its prompt; a run's are the defaults of its gens.

    `timeout_s` bounds a call from submission to its last token, in seconds. `return_logprob`
    None means: only if something else asks for it.
    """

    sampling: SamplingParams = field(default_factory=SamplingParams)
    return_logprob: bool | None = None
    return_text_in_logprobs: bool = False
    timeout_s: float | None = None
    cache_salt: str = ""
    priority: int = 0

    def changed(self, changes: Mapping[str, object]) -> CallOptions:
        """With `changes` (checked names and values) applied. Pure."""
        inner = {name: value for name, value in changes.items() if name in _SAMPLING_FIELDS}
        outer = {name: value for name, value in changes.items() if name not in inner}
        sampling = replace(self.sampling, **inner)  # type: ignore[arg-type]
        return replace(self, sampling=sampling, **outer)  # type: ignore[arg-type]

    def call_sampling(self) -> SamplingParams:
        """The sampling parameters to send: numbers are asked for only if wanted. Pure."""
        sampling = self.sampling
        is_implied = sampling.top_logprobs > 0 or sampling.prompt_logprobs_from is not None
        if is_implied if self.return_logprob is None else self.return_logprob:
            return replace(sampling, return_logprobs=True)
        return replace(
            sampling, return_logprobs=False, top_logprobs=0, prompt_logprobs_from=None
        )


def _texts(name: str, value: object) -> tuple[str, ...]:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
        message = f"{name} is {value!r}, allowed are a text or a list of texts"
        raise BadRequest(message, field=name, reason="type")
    return tuple(whole_text(item, name) for item in items)


def _patterns(name: str, value: object) -> tuple[str, ...]:
    patterns = _texts(name, value)
    from mmserve.constrained.search import compile_stops  # noqa: PLC0415  slow to import

    compile_stops(patterns)
    return patterns


def _token_ids(name: str, value: object) -> tuple[int, ...]:
    items = [value] if isinstance(value, int) else value
    if not isinstance(items, (list, tuple, set, frozenset)):
        items = [None]
    if not all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        message = f"{name} is {value!r}, allowed is a list of token ids"
        raise BadRequest(message, field=name, reason="type")
    return tuple(items)


def _start(name: str, value: object) -> int | None:
    number = _number(name, value, is_whole=True)
    return None if number == -1 else int(number)


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        message = f"{name} is {value!r}, allowed are True and False"
        raise BadRequest(message, field=name, reason="type")
    return value


def _seconds(name: str, value: object) -> float:
    seconds = _number(name, value, is_whole=False)
    if not seconds > 0:
        message = f"{name} is {seconds}, it must be above 0 seconds"
        raise BadRequest(message, field=name, reason="range")
    return float(seconds)


def _salt(name: str, value: object) -> str:
    if not isinstance(value, str):
        message = f"{name} is {value!r}, allowed is a text"
        raise BadRequest(message, field=name, reason="type")
    return value


def _number(name: str, value: object, *, is_whole: bool) -> float:
    kinds = (int,) if is_whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        what = "a whole number" if is_whole else "a number"
        message = f"{name} is {value!r}, it must be {what}"
        raise BadRequest(message, field=name, reason="type")
    return value


_CHECKS: dict[str, Callable[[str, object], object]] = {
    "stop": _texts,
    "stop_patterns": _patterns,
    "stop_token_ids": _token_ids,
    "prompt_logprobs_from": _start,
    "ignore_eos": _flag,
    "return_logprob": _flag,
    "return_text_in_logprobs": _flag,
    "timeout_s": _seconds,
    "cache_salt": _salt,
}


def _checked(name: str, target: str, value: object) -> object:
    if target in _CHECKS:
        return _CHECKS[target](name, value)
    default = _SAMPLING_FIELDS[target].default if target in _SAMPLING_FIELDS else 0
    return _number(name, value, is_whole=not isinstance(default, float))


def checked_changes(values: Mapping[str, object]) -> dict[str, object]:
    """Fields of `CallOptions` and its sampling that `values` set, by the language's names.

    None is left out. Raises TypeError for a name the language does not have and BadRequest for
    a value that cannot be served. Pure.
    """
    changes: dict[str, object] = {}
    for name, value in values.items():
        if name not in _RENAMED and name not in (*_SAME, *_OWN, *_RUN_ONLY):
            message = f"there is no parameter named {name!r}"
            raise TypeError(message)
        if value is not None:
            target = _RENAMED.get(name, name)
            changes[target] = _checked(name, target, value)
    check_sampling(CallOptions().changed(changes).sampling, _ANY_VOCABULARY)
    return changes


def asked_names(options: CallOptions) -> tuple[str, ...]:
    """The language's words for what `options` ask beyond the defaults, sorted. Pure."""
    default = CallOptions()
    own = (*_OWN, *_RUN_ONLY)
    asked = {name for name in own if getattr(options, name) != getattr(default, name)}
    for name, spec in _SAMPLING_FIELDS.items():
        if name in _WORDS and getattr(options.sampling, name) != spec.default:
            asked.add(_WORDS[name])
    return tuple(sorted(asked))


def run_options(values: Mapping[str, object]) -> CallOptions:
    """The defaults of a run. Raises as `checked_changes`. Pure."""
    return CallOptions().changed(checked_changes(values))
