"""The picture of a hit-rate record: a panel a capacity, bars by shape and policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["plot"]

_BAR_COLOURS = ("#1b6ca8", "#8d99ae", "#c9ada7", "#e9c46a", "#a3b18a", "#d8b4e2")
_MARKS = {0.9: "o", 2.0: "^", 8.0: "s"}


def plot(rows: Sequence[Mapping[str, Any]], target: Path) -> None:
    """Write an SVG: offline shares as bars, online shares of the default policy as marks.

    Raises:
        SystemExit: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        message = "--plot needs matplotlib. hint: pip install 'mmserve[bench]'"
        raise SystemExit(message) from error
    mpl.rcParams["svg.hashsalt"] = "hit-rate"
    fair = [row for row in rows if row["fairness"]]
    shapes = list(dict.fromkeys(row["shape"] for row in fair))
    capacities = list(dict.fromkeys(row["capacity"] for row in fair))
    policies = list(dict.fromkeys(row["policy"] for row in fair))
    figure = Figure(figsize=(14, 2.6 * len(capacities) + 1), layout="constrained")
    panels = figure.subplots(len(capacities), 1, sharex=True, squeeze=False)[:, 0]
    width = 0.84 / len(policies)
    for panel, capacity in zip(panels, capacities, strict=True):
        here = [row for row in fair if row["capacity"] == capacity]
        for number, policy in enumerate(policies):
            shares = _shares(here, shapes, policy, "offline")
            places = [at + (number - (len(policies) - 1) / 2) * width for at in shares]
            colour = _BAR_COLOURS[number % len(_BAR_COLOURS)]
            panel.bar(places, list(shares.values()), width, color=colour, label=policy)
        for load, mark in _MARKS.items():
            shares = _shares(here, shapes, policies[0], load)
            label = f"{policies[0]}, online at load {load:g}"
            panel.plot(list(shares), list(shares.values()), f"k{mark}", ms=4, label=label)
        size = f"{capacity:g} x the longest" if isinstance(capacity, float) else capacity
        panel.set_title(f"cache: {size}", loc="left", fontsize=10)
        panel.set_ylabel("share of optimum")
        panel.set_ylim(0, 1.1)
        panel.set_axisbelow(True)
        panel.grid(axis="y", alpha=0.4)
    panels[-1].set_xticks(range(len(shapes)), shapes, rotation=20, ha="right")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=5, fontsize=9)
    figure.savefig(target, format="svg", metadata={"Date": None})


def _shares(
    rows: Sequence[Mapping[str, Any]],
    shapes: Sequence[str],
    policy: str,
    load: float | str,
) -> dict[int, float]:
    """Share by place of the shape; shapes that were not run are left out. Pure."""
    return {
        shapes.index(row["shape"]): row["share_of_optimum"]
        for row in rows
        if row["policy"] == policy and row["load"] == load
    }
