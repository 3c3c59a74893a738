"""Writes the reference pages from what the code declares; run it after a change there."""

from __future__ import annotations

from dataclasses import Field, fields
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

from mmserve.core import (
    EngineConfig,
    MediaConfig,
    MmserveError,
    SamplingParams,
    SchedConfig,
    ServerConfig,
)
from mmserve.server.histograms import BUCKETS
from mmserve.server.watch.metrics_help import HELP

HERE = Path(__file__).parent
SETTINGS = (EngineConfig, SchedConfig, MediaConfig, ServerConfig)


def table(kind: type, *, with_range: bool) -> str:
    """A dataclass's documented fields as a Markdown table."""
    head = (
        "| name | default | range | meaning |" if with_range else "| name | default | meaning |"
    )
    lines = [head, "|" + "---|" * (head.count("|") - 1)]
    hints = get_type_hints(kind)
    for spec in fields(kind):
        if "doc" in spec.metadata:
            span = [_range(spec)] if with_range else []
            cells = [
                f"`{spec.name}`",
                f"`{spec.default}`",
                *span,
                _meaning(spec, hints[spec.name]),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _meaning(spec: Field[object], hint: object) -> str:
    words = get_args(hint) if get_origin(hint) is Literal else ()
    named = ": " + ", ".join(f"`{word}`" for word in words) if words else ""
    return spec.metadata["doc"] + named


def _range(spec: Field[object]) -> str:
    if "low" not in spec.metadata:
        return ""
    return f"{spec.metadata['low']:g} to {spec.metadata['high']:g}"


def settings_page() -> str:
    """All settings, by value type."""
    parts = [
        f"## {kind.__name__}\n\n{kind.__doc__}\n\n{table(kind, with_range=False)}"
        for kind in SETTINGS
    ]
    intro = "# Settings\n\nFlags of `mmserve serve` and arguments of `Engine` have these names."
    return "\n\n".join([intro, *parts]) + "\n"


def sampling_page() -> str:
    """Sampling parameters."""
    intro = (
        "# Sampling parameters\n\nDeclared in `mmserve/core/sampling.py`; ranges are inclusive."
    )
    return f"{intro}\n\n{table(SamplingParams, with_range=True)}\n"


def errors_page() -> str:
    """The error tree with its stable code words."""
    lines = ["# Errors", "", "| class | code | meaning |", "|---|---|---|"]
    todo: list[type[MmserveError]] = [MmserveError]
    while todo:
        kind = todo.pop(0)
        summary = (kind.__doc__ or "").splitlines()[0]
        lines.append(f"| `{kind.__name__}` | `{kind.code}` | {summary} |")
        todo[:0] = [c for c in kind.__subclasses__() if c.__module__ == "mmserve.core.errors"]
    return "\n".join(lines) + "\n"


def metrics_page() -> str:
    """Counters, gauges and histograms."""
    intro = (
        "# Metrics\n\nSeries of `/metrics`. Those in `_total` only grow, those in `_seconds`"
        " are histograms, others are gauges.\n"
    )
    lines = ["| name | meaning |", "|---|---|"]
    lines += [f"| `mmserve_{name}` | {words} |" for name, words in HELP.items()]
    lines += ["", "## Buckets", "", "| histogram | upper bounds in seconds |", "|---|---|"]
    lines += [
        f"| `mmserve_{name}` | {', '.join(f'{bound:g}' for bound in bounds)} |"
        for name, bounds in BUCKETS.items()
    ]
    return "\n".join([intro, *lines]) + "\n"


PAGES = {
    "settings.md": settings_page,
    "sampling.md": sampling_page,
    "errors.md": errors_page,
    "metrics.md": metrics_page,
}


def main() -> None:
    """Write every page."""
    for name, page in PAGES.items():
        (HERE / name).write_text(page())


if __name__ == "__main__":
    main()
