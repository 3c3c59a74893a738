"""What is counted, in Prometheus' text format: by the engine, and by the server itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from mmserve.core import parse_series
from mmserve.server.histograms import Histograms
from mmserve.server.watch.metrics_help import help_of

__all__ = ["metrics_text"]

_PREFIX = "mmserve_"


class _Collector:
    def __init__(self, series: Mapping[str, float], histograms: Histograms) -> None:
        self._series = series
        self._histograms = histograms

    def collect(self) -> Iterator[Metric]:
        """One family for each name, counters where it ends in `_total`."""
        yield from self._of_series()
        yield from self._of_histograms()

    def _of_histograms(self) -> Iterator[Metric]:
        families: dict[str, HistogramMetricFamily] = {}
        for name, labels, cell in self._histograms.cells():
            if name not in families:
                families[name] = HistogramMetricFamily(
                    _PREFIX + name, help_of(name), labels=list(labels)
                )
            families[name].add_metric(list(labels.values()), cell.buckets(), cell.total_s)
        yield from families.values()

    def _of_series(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for key, value in self._series.items():
            name, labels = parse_series(key)
            if name not in families:
                kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                families[name] = kind(_PREFIX + name, help_of(name), labels=list(labels))
            sample = _PREFIX + name
            families[name].add_sample(sample, labels, value)
        yield from families.values()


def metrics_text(*sources: Mapping[str, float], histograms: Histograms | None = None) -> bytes:
    """The text of all sources; a series that several have is added up. Pure."""
    series: defaultdict[str, float] = defaultdict(float)
    for source in sources:
        for key, value in source.items():
            series[key] += value
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(series, histograms or Histograms()))
    return generate_latest(registry)
