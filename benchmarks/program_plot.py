"""The picture of a programs record: speed relative to the full system, and tokens computed.

upper panel   programs per second as a share of full, bars by workload and configuration
lower panel   tokens computed, as a multiple of full
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["plot"]

_BARS = {
    "full": ("full system", "#1b4965"),
    "no_fork_hint": ("without fork hints", "#5fa8d3"),
    "fcfs": ("first come first served", "#a3b18a"),
    "random": ("random order", "#dad7cd"),
    "no_tree": ("flat table, no tree", "#e9c46a"),
    "no_parallelism": ("one statement at a time", "#f4a261"),
    "no_cache": ("no cache", "#bc4b51"),
    "transformers": ("transformers", "#3d3d3d"),
}
_PANELS = (
    ("programs_per_s", "programs per second\n(full system = 1)"),
    ("tokens_computed", "tokens computed\n(full system = 1)"),
)


def plot(rows: Sequence[Mapping[str, Any]], target: Path) -> None:
    """Write an SVG of the configurations with room for all KV, relative to the full system.

    Raises:
        SystemExit: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        message = "--plot needs matplotlib. hint: pip install 'mmserve[bench]'"
        raise SystemExit(message) from error
    mpl.rcParams["svg.hashsalt"] = "programs"
    table = {(row["workload"], row["configuration"]): row for row in rows}
    names = list(dict.fromkeys(row["workload"] for row in rows))
    shown = [bar for bar in _BARS if any((name, bar) in table for name in names)]
    figure = Figure(figsize=(15, 7), layout="constrained")
    panels = figure.subplots(2, 1, sharex=True)
    width = 0.86 / len(shown)
    for panel, (column, label) in zip(panels, _PANELS, strict=True):
        for number, bar in enumerate(shown):
            offset = (number - (len(shown) - 1) / 2) * width
            shares = [_share(table, name, bar, column) for name in names]
            places = [at + offset for at in range(len(names))]
            title, colour = _BARS[bar]
            panel.bar(places, shares, width, color=colour, label=title)
        panel.axhline(1, color="#1b4965", linewidth=0.6)
        panel.set_ylabel(label)
        panel.set_xticks(range(len(names)), [name.replace("_", "\n") for name in names])
        panel.set_xlim(-0.55, len(names) - 0.45)
        panel.spines[["top", "right"]].set_visible(False)
    panels[1].set_yscale("log", base=2)
    panels[1].yaxis.set_major_formatter("{x:g}")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=8)
    figure.savefig(target, format="svg", metadata={"Date": None})


def _share(
    table: Mapping[tuple[str, str], Mapping[str, Any]], name: str, bar: str, column: str
) -> float:
    row, full = table.get((name, bar)), table[name, "full"]
    return 0.0 if row is None else row[column] / full[column]
