"""The picture of a serve-rate record: three latencies against the rate, p50 and p99.

panels    time to the first token | between tokens | end to end
lines     an engine each: p99 drawn through, p50 dashed; the limit of p99 TTFT is dotted
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["plot"]

_COLOURS = ("#1b4965", "#bc4b51", "#8a8a8a", "#e9c46a")
_PANELS = (
    ("ttft", "time to first token"),
    ("itl", "between pieces of text"),
    ("e2e", "end to end"),
)


def plot(rows: Sequence[Mapping[str, Any]], limit_ms: float, target: Path) -> None:
    """Write an SVG of all rates that were played.

    Raises:
        SystemExit: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
        from matplotlib.ticker import LogLocator  # noqa: PLC0415
    except ImportError as error:
        message = "--plot needs matplotlib. hint: pip install 'mmserve[bench]'"
        raise SystemExit(message) from error
    mpl.rcParams["svg.hashsalt"] = "serve-rate"
    played = [row for row in rows if "rate_per_s" in row]
    engines = list(dict.fromkeys(row["engine"] for row in played))
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    panels = figure.subplots(1, 3)
    for panel, (name, title) in zip(panels, _PANELS, strict=True):
        for engine, colour in zip(engines, _COLOURS, strict=False):
            here = [row for row in played if row["engine"] == engine]
            rates = [row["rate_per_s"] for row in here]
            for percent, style in ((99, "-o"), (50, "--o")):
                values = [row[f"{name}_p{percent}_ms"] for row in here]
                shown = [value / 1e3 if value else np.nan for value in values]
                label = f"{engine}, p{percent}"
                panel.plot(rates, shown, style, color=colour, ms=3.5, lw=1.4, label=label)
        panel.set_xscale("log")
        panel.set_yscale("log")
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter("")
        panel.set_title(title, fontsize=10, loc="left")
        panel.set_xlabel("requests a second")
        panel.grid(which="major", alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].axhline(limit_ms / 1e3, color="#444444", ls=":", lw=1.2, label="limit of p99")
    panels[0].set_ylabel("seconds")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    figure.savefig(target, format="svg", metadata={"Date": None})
