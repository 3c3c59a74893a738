"""The picture of a json_jump record: answers per second with and without, and steps.

upper panel   answers per second with jumps, as a multiple of without
lower panel   steps of a batch of answers, with jumps and without
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["plot"]

_COLOURS = {"regex": ("#1b4965", "#8d99ae"), "schema": ("#5fa8d3", "#dad7cd")}
_WIDTH = 0.38


def plot(rows: Sequence[Mapping[str, Any]], target: Path) -> None:
    """Write an SVG: a group of bars a variant, of which one is by regex and one by schema.

    Raises:
        SystemExit: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        message = "--plot needs matplotlib. hint: pip install 'mmserve[bench]'"
        raise SystemExit(message) from error
    mpl.rcParams["svg.hashsalt"] = "json-jump"
    groups = list(dict.fromkeys(map(_group, rows)))
    figure = Figure(figsize=(11, 7), layout="constrained")
    speed, steps = figure.subplots(2, 1, sharex=True)
    for number, (kind, (colour, pale)) in enumerate(_COLOURS.items()):
        here = {_group(row): row for row in rows if row["kind"] == kind}
        places = [groups.index(group) + (number - 0.5) * _WIDTH for group in here]
        shown = list(here.values())
        bars = speed.bar(
            places, [row["speedup"] for row in shown], _WIDTH, color=colour, label=f"by {kind}"
        )
        speed.bar_label(bars, fmt="%.2f", fontsize=9)
        steps.bar(
            places,
            [row["steps_without"] for row in shown],
            _WIDTH,
            color=pale,
            label=f"by {kind}, without jumps",
        )
        steps.bar(
            places, [row["steps"] for row in shown], _WIDTH, color=colour, label=f"by {kind}"
        )
    speed.axhline(1, color="#3d3d3d", linewidth=0.6)
    speed.set_ylabel("answers per second\n(without jumps = 1)")
    steps.set_ylabel("steps of a batch")
    steps.set_xticks(range(len(groups)), groups)
    for panel in (speed, steps):
        panel.spines[["top", "right"]].set_visible(False)
    figure.legend(*steps.get_legend_handles_labels(), loc="outside upper center", ncols=4)
    figure.savefig(target, format="svg", metadata={"Date": None})


def _group(row: Mapping[str, Any]) -> str:
    """A variant but for its kind, as the words below its bars. Pure."""
    shown = "picture" if row["picture"] else "text"
    return f"{row['model']}\n{shown}, {row['batch']} at once"
