"""What a backend can do, as data, and the refusal of what it cannot.

append   node + place ->  check_node     by the program's own words, before anything is queued
run      options      ->  check_options  values that every gen inherits

A refusal names the parameter, the backend and the way out. Values that change nothing are never
refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mmserve.core import (
    ImagePart,
    ProgramMisuse,
    RawPart,
    SamplingParams,
    TextPart,
    UnsupportedByBackend,
)
from mmserve.core import VideoPart as Clip
from mmserve.lang.choices import token_length_normalized
from mmserve.lang.ir import Gen, Prepared, RoleBegin, Select
from mmserve.lang.parameters import CallOptions, asked_names
from mmserve.lang.places import Place

__all__ = ["COMMON", "EVERYTHING", "Abilities", "Limits", "check_node", "check_options"]

COMMON = frozenset({"max_tokens", "stop", "temperature", "top_p", "timeout_s"})
"""Parameters that every backend takes."""

_OURS = "use Engine or RuntimeEndpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What a backend takes beyond `COMMON`.

    Args:
        parameters: words of `gen` and `run` that it takes; None means all.
        dtypes: values of `dtype` that it takes.
        highest_temperature: the most that `temperature` may be; None means no limit of its own.
        has_pictures: pictures may stand in prompts.
        has_clips: clips may stand in prompts.
        has_turns: turns may stand in prompts.
        has_free_text: text and calls may stand outside turns.
        has_partial_turns: a call may continue a turn that already has content.
        has_raw: text may spell control tokens, by `raw`.
        has_prefix_calls: a call may generate nothing: it ranks, or computes a prefix early.
        has_choices: `select` with the default rule.
        has_rules: `select` with any rule, from exact log-probabilities.
    """

    parameters: frozenset[str] | None = COMMON
    dtypes: frozenset[str] = frozenset()
    highest_temperature: float | None = None
    has_pictures: bool = True
    has_clips: bool = False
    has_turns: bool = True
    has_free_text: bool = False
    has_partial_turns: bool = False
    has_raw: bool = False
    has_prefix_calls: bool = False
    has_choices: bool = False
    has_rules: bool = False

    def takes(self, parameter: str) -> bool:
        """Whether a parameter of `gen` or `run` is served. Pure."""
        return self.parameters is None or parameter in self.parameters or parameter in COMMON


EVERYTHING = Abilities(
    parameters=None,
    dtypes=frozenset({"int", "float", "str", "bool"}),
    has_clips=True,
    has_free_text=True,
    has_partial_turns=True,
    has_raw=True,
    has_prefix_calls=True,
    has_choices=True,
    has_rules=True,
)


@dataclass(frozen=True, slots=True)
class Limits:
    """The backend of a run, by name and abilities.

    `num_spec_tokens` is the program's `num_api_spec_tokens` if it has an effect on this
    backend: then several calls may stand in one assistant turn. `options` are what gens
    inherit.
    """

    backend: str
    abilities: Abilities = EVERYTHING
    num_spec_tokens: int | None = None
    options: CallOptions = field(default_factory=CallOptions)

    @classmethod
    def of(
        cls,
        backend: str,
        abilities: Abilities,
        num_spec_tokens: int | None,
        options: CallOptions,
    ) -> Limits:
        """Limits under a program's wish to speculate; it counts where it can help. Pure."""
        is_useful = not abilities.has_partial_turns or abilities.has_free_text
        if abilities is EVERYTHING or not is_useful:
            num_spec_tokens = None
        return cls(backend, abilities, num_spec_tokens, options)

    @property
    def collects_turns(self) -> bool:
        """Whether the calls of a turn are made as one at its end. Pure."""
        return self.num_spec_tokens is not None and not self.abilities.has_partial_turns

    def refuse(self, parameter: str, message: str, hint: str = _OURS) -> UnsupportedByBackend:
        """The error for something this backend cannot do. Pure."""
        return UnsupportedByBackend(
            f"{self.backend} cannot serve {message}",
            parameter=parameter,
            backend=self.backend,
            hint=hint,
        )


def check_options(options: CallOptions, limits: Limits) -> None:
    """Refuse values of a run that the backend would have to ignore. Pure.

    Raises UnsupportedByBackend.
    """
    for name in asked_names(options):
        if not limits.abilities.takes(name):
            raise limits.refuse(name, f"{name}", f"leave it out, or {_OURS}")
    if options.sampling.max_new_tokens == 0:
        _check_length(limits)
    _check_temperature(options.sampling.temperature, limits)


def check_node(node: Prepared, place: Place, limits: Limits) -> None:
    """Refuse a statement that the backend cannot serve at `place`. Pure.

    Raises UnsupportedByBackend, and ProgramMisuse for calls of one turn that cannot be
    answered together.
    """
    abilities = limits.abilities
    if abilities is EVERYTHING:
        return
    match node:
        case Gen():
            _check_gen(node, place, limits)
        case Select():
            _check_select(node, limits)
        case ImagePart() | Clip():
            _check_media(node, limits)
        case RawPart() if not abilities.has_raw:
            raise limits.refuse("raw", "raw text", f"append it as text, or {_OURS}")
        case RoleBegin() if not abilities.has_turns:
            raise limits.refuse("chat_template", "turns", "give the backend a chat_template")
    if place.role is None and not abilities.has_free_text and _is_content(node):
        raise limits.refuse(
            "text outside turns", "text or calls outside turns", "put it in a user turn"
        )


def _check_gen(node: Gen, place: Place, limits: Limits) -> None:
    abilities = limits.abilities
    for name in sorted(node.asks):
        if not abilities.takes(name):
            raise limits.refuse(name, name, f"leave it out, or {_OURS}")
    if node.changes.get("max_new_tokens") == 0:
        _check_length(limits)
    _check_temperature(node.changes.get("temperature"), limits)
    if node.dtype is not None and node.dtype not in abilities.dtypes:
        raise limits.refuse("dtype", f"dtype {node.dtype}", f"convert the text, or {_OURS}")
    if place.role is None or abilities.has_free_text:
        return
    if place.role != "assistant":
        raise limits.refuse(
            "gen", f"a gen in a {place.role} turn", "put it in an assistant turn"
        )
    if abilities.has_partial_turns or not place.has_content:
        return
    if limits.num_spec_tokens is None:
        raise limits.refuse(
            "gen",
            "a gen later in its turn",
            "give each gen a turn, or use @function(num_api_spec_tokens=k)",
        )
    _check_turn(node, place.gens, limits)


_ALONE = frozenset(
    {
        "dtype",
        "ebnf",
        "json_schema",
        "logprob_start_len",
        "n",
        "regex",
        "return_logprob",
        "stop_regex",
        "top_logprobs_num",
    }
)


def _check_temperature(temperature: object, limits: Limits) -> None:
    most = limits.abilities.highest_temperature
    if most is not None and isinstance(temperature, (int, float)) and temperature > most:
        raise limits.refuse(
            "temperature", f"temperature {temperature:g}", f"the most is {most:g}"
        )


def _check_length(limits: Limits) -> None:
    if not limits.abilities.has_prefix_calls:
        hint = f"ask for a token at least, or {_OURS}"
        raise limits.refuse("max_tokens", "max_tokens 0", hint)


def _check_media(node: ImagePart | Clip, limits: Limits) -> None:
    abilities = limits.abilities
    if isinstance(node, ImagePart) and not abilities.has_pictures:
        raise limits.refuse("image", "pictures")
    if isinstance(node, Clip) and not abilities.has_clips:
        raise limits.refuse("video", "clips", f"append frames as images, or {_OURS}")
    for name in ("max_pixels", "min_pixels"):
        if getattr(node, name) is not None and not abilities.takes(name):
            raise limits.refuse(name, name, f"resize it before, or {_OURS}")


def _check_turn(node: Gen, earlier: Sequence[Gen], limits: Limits) -> None:
    # One call answers all gens of a turn: it has one set of values, and stops part the answer.
    for name in sorted(_ALONE & node.asks.union(*(gen.asks for gen in earlier))):
        raise limits.refuse(
            name, f"{name} for several gens in one turn", "give each gen a turn of its own"
        )
    if any(gen.reasoning is not None for gen in (*earlier, node)):
        hint = "give each gen a turn of its own"
        raise limits.refuse("separate_reasoning", "thinking of several gens in one turn", hint)
    for gen in earlier:
        if not (limits.options.changed(gen.changes).sampling.stop or gen.extra_stops):
            message = f"the gen {gen.name!r} is not the last of its turn and has no stop"
            raise ProgramMisuse(message, hint="give it a stop, so that its end can be found")
        if _values(gen, limits) != _values(node, limits):
            message = f"the gens {gen.name!r} and {node.name!r} of one turn differ in values"
            raise ProgramMisuse(message, hint="one call answers the whole turn")


def _values(gen: Gen, limits: Limits) -> SamplingParams:
    sampling = limits.options.changed(gen.changes).call_sampling()
    return replace(sampling, stop=(), max_new_tokens=None)


def _check_select(node: Select, limits: Limits) -> None:
    abilities = limits.abilities
    if not abilities.has_choices:
        raise limits.refuse("select", "a select", f"ask with gen, or {_OURS}")
    if node.method is not token_length_normalized and not abilities.has_rules:
        raise limits.refuse("choices_method", "other rules of choice than the default one")


def _is_content(node: Prepared) -> bool:
    return isinstance(node, (Gen, Select, TextPart, RawPart, ImagePart, Clip))
