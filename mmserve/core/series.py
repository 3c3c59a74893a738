"""Names of counters and gauges: a Prometheus name, and labels if there are any.

    series_key("finished_total", reason="stop")      'finished_total{reason="stop"}'

Values of labels may hold any text; the two functions are each other's inverse.
"""

from __future__ import annotations

import re

__all__ = ["parse_series", "series_key"]

_SERIES = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?", re.DOTALL)
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"(?:,|\Z)', re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_MEANT = {"n": "\n"}


def series_key(name: str, /, **labels: object) -> str:
    """The key of one series, labels in alphabetic order. Pure."""
    words = ",".join(f'{key}="{_escaped(str(labels[key]))}"' for key in sorted(labels))
    return f"{name}{{{words}}}" if words else name


def parse_series(key: str) -> tuple[str, dict[str, str]]:
    """Name and labels of a series. Pure. Raises ValueError for what is no key."""
    match = _SERIES.fullmatch(key)
    if match is None:
        raise ValueError(f"{key!r} names no series")
    labels, position = {}, 0
    words = match[2] or ""
    while position < len(words):
        label = _LABEL.match(words, position)
        if label is None:
            raise ValueError(f"{key!r} names no series")
        labels[label[1]] = _ESCAPE.sub(lambda sign: _MEANT.get(sign[1], sign[1]), label[2])
        position = label.end()
    return match[1], labels


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
