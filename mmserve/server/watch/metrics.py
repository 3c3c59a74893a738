"""Counters and gauges in Prometheus' text format: the engine's, and the server's own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from mmserve.core import parse_series
from mmserve.server.watch.metrics_help import help_of

__all__ = ["metrics_text"]

_PREFIX = "mmserve_"


class _Collector:
    def __init__(self, series: Mapping[str, float]) -> None:
        self._series = series

    def collect(self) -> Iterator[Metric]:
        """One family for each name, counters where it ends in `_total`."""
        families: dict[str, Metric] = {}
        for key, value in self._series.items():
            name, labels = parse_series(key)
            if name not in families:
                kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                families[name] = kind(_PREFIX + name, help_of(name), labels=list(labels))
            sample = _PREFIX + name
            families[name].add_sample(sample, labels, value)
        yield from families.values()


def metrics_text(*sources: Mapping[str, float]) -> bytes:
    """The text of all sources; a series that several have is added up. Pure."""
    series: defaultdict[str, float] = defaultdict(float)
    for source in sources:
        for key, value in source.items():
            series[key] += value
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(series))
    return generate_latest(registry)
