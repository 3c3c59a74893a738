"""The primitives of a program: each gives an `Expr` and is checked when it is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypedDict, Unpack

from mmserve.core import BadRequest, ImagePart, RawPart, VideoPart
from mmserve.lang.choices import ChoicesMethod, token_length_normalized
from mmserve.lang.constraints import answer_shape
from mmserve.lang.ir import Expr, Gen, Picture, RoleBegin, RoleEnd, Select, as_expr
from mmserve.lang.media import image_source, video_source
from mmserve.lang.parameters import CallOptions, PlainOptions, asked_names, checked_changes
from mmserve.lang.reasoning import notation_named
from mmserve.lang.texts import whole_text

__all__ = [
    "GenOptions",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "gen",
    "gen_int",
    "gen_string",
    "image",
    "raw",
    "select",
    "separate_reasoning",
    "system",
    "system_begin",
    "system_end",
    "user",
    "user_begin",
    "user_end",
    "video",
]


class GenOptions(PlainOptions, total=False):
    """What `gen` takes beyond `PlainOptions`: at most one constraint, or choices."""

    dtype: type | str | None
    choices: Sequence[str] | None
    choices_method: ChoicesMethod | None
    regex: str | None
    json_schema: object
    ebnf: str | None


_CONSTRAINTS = ("dtype", "regex", "json_schema", "ebnf")


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | list[str] | None = None,
    stop_token_ids: list[int] | None = None,
    **options: Unpack[GenOptions],
) -> Expr:
    """An answer of the model; None inherits the run's value.

    With `choices` it is a `select`. Raises BadRequest or ConstraintRefused for values that can
    never be served. Pure.
    """
    if options.get("choices") is not None:
        return _gen_choices(name, options)
    shape = answer_shape(*(options.get(word) for word in _CONSTRAINTS))
    plain = {
        word: value
        for word, value in options.items()
        if word not in (*_CONSTRAINTS, "choices", "choices_method")
    }
    plain |= {"max_tokens": max_tokens, "min_tokens": min_tokens, "n": n}
    plain |= {"stop": stop, "stop_token_ids": stop_token_ids}
    changes = checked_changes(plain)
    asks = {word for word in _CONSTRAINTS if options.get(word) is not None}
    node = Gen(
        _checked_name(name),
        changes,
        shape.constraint,
        shape.extra_stops,
        shape.convert,
        asks=frozenset({*asks, *asked_names(CallOptions().changed(changes))}),
        dtype=shape.dtype,
    )
    return Expr((node,))


def _gen_choices(name: str | None, options: GenOptions) -> Expr:
    for word in _CONSTRAINTS:
        if options.get(word) is not None:
            message = f"choices and {word} are given, a gen takes one constraint"
            raise BadRequest(message, field=word, reason="exclusive")
    return select(
        name,
        options.get("choices"),
        options.get("temperature") or 0.0,
        options.get("choices_method") or token_length_normalized,
        timeout_s=options.get("timeout_s"),
    )


def gen_int(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: str | list[str] | None = None,
    stop_token_ids: list[int] | None = None,
    **options: Unpack[PlainOptions],
) -> Expr:
    """A `gen` whose answer is a whole number. Raises as `gen`. Pure."""
    return gen(name, max_tokens, None, n, stop, stop_token_ids, dtype=int, **options)


def gen_string(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: str | list[str] | None = None,
    stop_token_ids: list[int] | None = None,
    **options: Unpack[PlainOptions],
) -> Expr:
    """A `gen` whose answer is a text in double quotes. Raises as `gen`. Pure."""
    return gen(name, max_tokens, None, n, stop, stop_token_ids, dtype=str, **options)


def separate_reasoning(expr: str | Expr | None = None, model_type: str | None = None) -> Expr:
    """`expr` whose gens keep the answer, and the thinking as `<name>_reasoning_content`.

    `model_type` says how the model marks its thinking; None takes `<think>` and `</think>`.
    Raises BadRequest for an unknown one. Pure.
    """
    notation = notation_named(model_type)
    nodes = as_expr(expr).nodes
    return Expr(
        tuple(
            replace(node, reasoning=notation) if isinstance(node, Gen) else node
            for node in nodes
        )
    )


def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesMethod = token_length_normalized,
    *,
    timeout_s: float | None = None,
) -> Expr:
    """The option that `choices_method` picks by log-probabilities; it is appended as text.

    Raises BadRequest for no options, an empty one, or a temperature that is not 0. Pure.
    """
    if temperature != 0:
        message = f"temperature of a select is {temperature}, it must be 0"
        raise BadRequest(message, field="temperature", reason="range")
    if isinstance(choices, str) or not choices:
        message = f"choices is {choices!r}, a select needs a list of texts"
        raise BadRequest(message, field="choices", reason="empty")
    _check_options(choices)
    _check_rule(choices_method)
    checked_changes({"timeout_s": timeout_s})
    return Expr((Select(_checked_name(name), tuple(choices), choices_method, timeout_s),))


def _check_options(options: Sequence[object]) -> None:
    for option in options:
        if not isinstance(option, str) or not option:
            message = f"choices holds {option!r}, every option is a text that is not empty"
            raise BadRequest(message, field="choices", reason="empty")
        whole_text(option, "choices")


def _check_rule(rule: object) -> None:
    if not callable(rule):
        message = f"choices_method is {rule!r}, it must be a rule"
        raise BadRequest(message, field="choices_method", reason="type")


def _checked_name(name: object) -> str | None:
    if name is not None and not isinstance(name, str):
        message = f"name is {name!r}, it must be a text"
        raise BadRequest(message, field="name", reason="type")
    return name


def image(
    expr: object, *, max_pixels: int | None = None, min_pixels: int | None = None
) -> Expr:
    """A picture where it stands in the text.

    Args:
        expr: path, http(s) or data URL, bytes, PIL picture, binary file object, or array
            [H, W], [H, W, 3] RGB or [H, W, 4] RGBA, uint8 or float in [0, 1].
        max_pixels: most pixels after resizing, where the model allows.
        min_pixels: least pixels after resizing, where the model allows.

    The content is taken when the expression is appended; MediaRefused is raised there.
    """
    _check_bounds(max_pixels, min_pixels)

    def load() -> ImagePart:
        return ImagePart(image_source(expr), max_pixels, min_pixels)

    return Expr((Picture(load, "image", expr),))


class ClipMoments(TypedDict, total=False):
    """Other ways to say which frames of a clip are taken; see `video`."""

    times_s: Sequence[float] | None
    key_frames: bool


def video(
    path: object,
    num_frames: int | None = None,
    *,
    fps: float | None = None,
    start_s: float | None = None,
    end_s: float | None = None,
    max_pixels: int | None = None,
    min_pixels: int | None = None,
    **moments: Unpack[ClipMoments],
) -> Expr:
    """A clip where it stands in the text.

    Args:
        path: path, URL, bytes, binary file object, list of pictures, or array [T, H, W, 3].
        num_frames: most frames taken, evenly over the range, ends included.
        fps: frames a second taken; for a list or array, its own rate (1 when absent).
        start_s: start of the range in seconds.
        end_s: end of the range in seconds.
        max_pixels: most pixels of a frame after resizing, where the model allows.
        min_pixels: least pixels of a frame after resizing, where the model allows.
        moments: `times_s`, moments whose frames are taken, in seconds, which stands alone; and
            `key_frames`: only frames that are stored whole are taken, which costs least.

    The content is taken when the expression is appended; MediaRefused is raised there.
    """
    _check_bounds(max_pixels, min_pixels)
    _check_window(num_frames, fps, start_s, end_s)
    times_s = moments.get("times_s")

    def load() -> VideoPart:
        source, rate = video_source(path, fps)
        return VideoPart(
            source,
            num_frames,
            rate,
            start_s,
            end_s,
            max_pixels,
            min_pixels,
            times_s=None if times_s is None else tuple(map(float, times_s)),
            key_frames=moments.get("key_frames", False),
        )

    return Expr((Picture(load, "video", path),))


def _check_bounds(max_pixels: int | None, min_pixels: int | None) -> None:
    for field, value in (("max_pixels", max_pixels), ("min_pixels", min_pixels)):
        if value is not None and value < 1:
            message = f"{field} is {value}, it must be at least 1"
            raise BadRequest(message, field=field, reason="range")


def _check_window(
    num_frames: int | None, fps: float | None, start_s: float | None, end_s: float | None
) -> None:
    if num_frames is not None and num_frames < 1:
        message = f"num_frames is {num_frames}, it must be at least 1"
        raise BadRequest(message, field="num_frames", reason="range")
    if fps is not None and not fps > 0:
        message = f"fps is {fps}, it must be above 0"
        raise BadRequest(message, field="fps", reason="range")
    if start_s is not None and start_s < 0:
        message = f"start_s is {start_s}, it must be at least 0"
        raise BadRequest(message, field="start_s", reason="range")
    if end_s is not None and end_s <= (start_s or 0):
        message = f"end_s is {end_s}, it must be above start_s ({start_s or 0})"
        raise BadRequest(message, field="end_s", reason="range")


def raw(text: object) -> Expr:
    """Template text: control tokens it spells count as control tokens. Pure.

    Raises TypeError for what is no text, and BadRequest for half of a surrogate pair.
    """
    if not isinstance(text, str):
        message = f"raw takes a text, not {type(text).__name__}"
        raise TypeError(message)
    return Expr((RawPart(whole_text(text, "text")),) if text else ())


def system(expr: str | Expr | None = None) -> Expr:
    """A system turn around `expr`. Pure."""
    return _turn("system", expr)


def user(expr: str | Expr | None = None) -> Expr:
    """A user turn around `expr`. Pure."""
    return _turn("user", expr)


def assistant(expr: str | Expr | None = None) -> Expr:
    """An assistant turn around `expr`. Pure."""
    return _turn("assistant", expr)


def _turn(role: str, expr: str | Expr | None) -> Expr:
    return Expr((RoleBegin(role), *as_expr(expr).nodes, RoleEnd(role)))


def system_begin() -> Expr:
    """Opens a system turn. Pure."""
    return Expr((RoleBegin("system"),))


def system_end() -> Expr:
    """Closes the system turn. Pure."""
    return Expr((RoleEnd("system"),))


def user_begin() -> Expr:
    """Opens a user turn. Pure."""
    return Expr((RoleBegin("user"),))


def user_end() -> Expr:
    """Closes the user turn. Pure."""
    return Expr((RoleEnd("user"),))


def assistant_begin() -> Expr:
    """Opens an assistant turn. Pure."""
    return Expr((RoleBegin("assistant"),))


def assistant_end() -> Expr:
    """Closes the assistant turn. Pure."""
    return Expr((RoleEnd("assistant"),))
