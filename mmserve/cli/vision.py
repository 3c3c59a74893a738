"""`mmserve show vision FILE`: what the model will see of a picture or clip, stage by stage."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from mmserve.cli import console
from mmserve.cli.console import Column
from mmserve.core import ImagePart, ItemLook, MediaLook, PathSource, VideoPart

__all__ = ["look_json", "part_of", "say_look"]

_CLIP_NAMES = re.compile(
    r"\.(mp4|m4v|mov|mkv|webm|avi|gif|m?ts|m2ts|mpe?g|m2v|mjpe?g|ogv|flv|f4v|wmv|asf|3gp|3g2|"
    r"h?26[45]|hevc|av1|obu|ivf|mxf|dv)\Z",
    re.I,
)
_MAX_PIECES = 40
_COLUMNS = (
    Column("item"),
    Column("at s", is_number=True),
    Column("prompt"),
    Column("grid"),
    Column("tokens", is_number=True),
    Column("patches", is_number=True),
    Column("ms", is_number=True),
    Column("identity"),
)


def part_of(path: Path, num_frames: int | None, fps: float | None) -> ImagePart | VideoPart:
    """The media part of a file: a clip by its ending or by what is asked of it. Pure."""
    source = PathSource(str(path))
    if num_frames is None and fps is None and not _CLIP_NAMES.search(path.name):
        return ImagePart(source)
    return VideoPart(source, num_frames=num_frames, fps=fps)


def say_look(look: MediaLook) -> None:
    """Print a look as a table, with the cost of each stage below."""
    console.say(look.source)
    if look.note:
        console.say(f"note: {look.note}")
    console.say()
    console.say_table(_COLUMNS, [_row(number, item) for number, item in enumerate(look.items)])
    console.say()
    shapes = {shape for item in look.items for shape in map(_shape, item.inputs)}
    console.say(f"the encoder takes {', '.join(sorted(shapes))}")
    num_features = sum(item.num_features for item in look.items)
    console.say(f"{look.prompt_tokens} tokens of the prompt, {num_features} of them features")
    costs = {
        "fetch": look.fetch_ms,
        "headers": look.probe_ms,
        "decode": sum(item.decode_ms for item in look.items),
        "preprocess": sum(item.preprocess_ms for item in look.items),
        "encode": look.encode_ms,
    }
    console.say("  ".join(f"{stage} {ms:.1f} ms" for stage, ms in costs.items()))


def look_json(look: MediaLook) -> dict[str, Any]:
    """A look for machines. Pure."""
    return dataclasses.asdict(look)


def _row(number: int, item: ItemLook) -> tuple[str, ...]:
    times = " ".join(f"{time:.2f}" for time in item.timestamps_s)
    grid = item.grid
    where = "" if grid is None else f"{grid.rows}x{grid.columns} t{grid.time}"
    return (
        str(number + 1),
        times,
        _pieces(item.pieces),
        where,
        str(item.num_features),
        str(item.num_patches),
        f"{item.decode_ms + item.preprocess_ms:.1f}",
        item.identity[:8],
    )


def _pieces(pieces: tuple[str | int, ...]) -> str:
    """What stands in the prompt, features as [n], repetitions cut short."""
    words = "".join(f"[{p}]" if isinstance(p, int) else p.replace("\n", "\\n") for p in pieces)
    return words if len(words) <= _MAX_PIECES else f"{words[: _MAX_PIECES - 2]}.."


def _shape(array: tuple[str, tuple[int, ...], str]) -> str:
    name, shape, kind = array
    return f"{name} {kind} {list(shape)}"
