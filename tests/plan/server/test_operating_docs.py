"""What operators read names only what there is: series, labels, flags and routes."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from support.echo_client import EchoClient

from mmserve.core import MediaConfig, ServerConfig
from mmserve.server import create_app
from mmserve.server.admin import ADMIN_PATHS
from mmserve.server.guard import OPEN_PATHS, UNLIMITED_PATHS
from mmserve.server.histograms import BUCKETS
from mmserve.server.watch.metrics_help import HELP

DOCS = Path(__file__).parents[3] / "docs"
BOARD = json.loads((DOCS / "operating/grafana.json").read_text())
QUERIES = [target["expr"] for panel in BOARD["panels"] for target in panel.get("targets", ())]
SECURITY = (DOCS / "operating/security.md").read_text()
METRICS = (DOCS / "operating/metrics.md").read_text()
OFF_FLAGS = {"no_page": "is_page_served"}
_NAME = re.compile(r"\bmmserve_([a-z0-9_]+)")
_PARTS = ("_bucket", "_sum", "_count")


def series() -> set[str]:
    """Every name that may stand on the metrics page."""
    plain = set(HELP) - set(BUCKETS)
    return plain | {f"{name}{part}" for name in BUCKETS for part in _PARTS}


@pytest.mark.parametrize("query", QUERIES)
def test_the_dashboard_asks_for_series_that_exist(query: str):
    """Of histograms their parts, which is what a page has."""
    names = set(_NAME.findall(query))
    assert names
    assert names <= series()


def test_the_dashboard_is_whole():
    """Panels have ids of their own and do not overlap; histograms are all drawn."""
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 15
    places = [
        (panel["gridPos"]["x"], panel["gridPos"]["y"])
        for panel in panels
        if panel["type"] != "row"
    ]
    assert len(set(places)) == len(places)
    drawn = {name for query in QUERIES for name in BUCKETS if name in query}
    assert drawn == set(BUCKETS)


def test_labels_of_the_dashboard_are_on_the_page(site):
    """Those that the server's own series are grouped by."""
    site.chat("x")
    page = site.http.get("/metrics").text
    for name in ("requests_total", "tokens_total", "stage_seconds_bucket"):
        (line, *_) = [row for row in page.splitlines() if row.startswith(f"mmserve_{name}{{")]
        for query in QUERIES:
            if f"mmserve_{name}" in query:
                for group in re.findall(r"by \(([^)]*)\)", query):
                    for label in group.split(", "):
                        assert f'{label}="' in line


def test_the_page_on_metrics_names_series_that_exist():
    """And all histograms."""
    names = set(_NAME.findall(METRICS))
    assert names <= set(HELP)
    assert set(BUCKETS) <= names


def test_the_page_on_security_names_flags_and_routes_that_exist():
    """Every setting of keys, limits, pages and media is told of."""
    known = {f.name for kind in (ServerConfig, MediaConfig) for f in fields(kind)}
    flags = {flag.replace("-", "_") for flag in re.findall(r"--([a-z][a-z-]+)", SECURITY)}
    flags = {OFF_FLAGS.get(flag, flag) for flag in flags}
    assert flags <= known
    own = {f.name for f in fields(ServerConfig)}
    told_elsewhere = {"port", "max_file_store_bytes", "file_expiry_s"}
    assert own - told_elsewhere <= flags
    paths = {route.path for route in create_app(EchoClient(), ServerConfig()).routes}
    routes = set(re.findall(r"`(/[a-z0-9_/.{}]*)`", SECURITY))
    assert routes <= paths
    assert {"/", "/v1/render", "/show/radix.json", "/v1/responses/{id}"} <= routes
    for path in OPEN_PATHS | UNLIMITED_PATHS | {p for p in ADMIN_PATHS if "show" not in p}:
        assert path in routes


@pytest.mark.parametrize("page", ["README.md", "docs/guides/serving.md"])
def test_the_pages_for_operators_are_linked(page: str):
    """From where a reader comes by."""
    assert "operating" in (DOCS.parent / page).read_text()
