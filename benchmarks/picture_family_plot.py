"""The picture of a picture-family record: speed and tokens, bars by family and engine.

left panel    programs per second as a multiple of transformers
right panel   tokens computed as a multiple of the least possible
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["plot"]

_COLOURS = ("#1b4965", "#5fa8d3", "#8a8a8a")


def plot(rows: Sequence[Mapping[str, Any]], target: Path) -> None:
    """Write an SVG of all families; the last engine of a family is what speed is relative to.

    Raises:
        SystemExit: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        message = "--plot needs matplotlib. hint: pip install 'mmserve[bench]'"
        raise SystemExit(message) from error
    mpl.rcParams["svg.hashsalt"] = "picture-family"
    table = {(row["family"], row["engine"]): row for row in rows}
    names = list(dict.fromkeys(row["family"] for row in rows))
    engines = list(dict.fromkeys(row["engine"] for row in rows))
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    width = 0.8 / len(engines)
    for number, (engine, colour) in enumerate(zip(engines, _COLOURS, strict=True)):
        offset = (number - (len(engines) - 1) / 2) * width
        places = [at + offset for at in range(len(names))]
        speeds = [
            table[name, engine]["programs_per_s"] / table[name, engines[-1]]["programs_per_s"]
            for name in names
        ]
        tokens = [table[name, engine].get("computed_over_least", 0.0) for name in names]
        for panel, values in ((left, speeds), (right, tokens)):
            bars = panel.bar(places, values, width, color=colour, label=engine)
            labels = [f"{value:.3g}" if value else "" for value in values]
            panel.bar_label(bars, labels, fontsize=8, padding=2)
    left.set_ylabel("programs per second (transformers = 1)")
    right.set_ylabel("tokens computed (least possible = 1)")
    for panel in (left, right):
        panel.axhline(1, color="#444444", linewidth=0.6)
        panel.set_xticks(range(len(names)), names)
        panel.set_axisbelow(True)
        panel.grid(axis="y", alpha=0.3)
        panel.margins(y=0.12)
        panel.spines[["top", "right"]].set_visible(False)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(engines))
    figure.savefig(target, format="svg", metadata={"Date": None})
