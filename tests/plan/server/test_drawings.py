"""Routes that draw what the engine holds."""

from __future__ import annotations

import httpx
import pytest
from support.echo_client import EchoClient

from mmserve.core import ServerConfig
from mmserve.server import RunningServer


@pytest.mark.parametrize("room", ["radix", "sched", "constrained"])
def test_a_room_is_drawn_as_text_or_svg(site, room: str) -> None:
    """Text unless `format` says svg; never kept by a cache, and never more than a picture."""
    plain = site.http.get(f"/show/{room}")
    assert (plain.status_code, plain.text) == (200, f"{room} as text\n")
    assert plain.headers["Content-Type"] == "text/plain; charset=utf-8"
    drawn = site.http.get(f"/show/{room}", params={"format": "svg"})
    assert (drawn.status_code, drawn.text) == (200, f"{room} as svg")
    assert drawn.headers["Content-Type"] == "image/svg+xml"
    for response in (plain, drawn):
        assert response.headers["Cache-Control"] == "no-store"
        assert response.headers["Content-Security-Policy"] == "default-src 'none'"


def test_the_tree_is_told_to_programs(site) -> None:
    """As JSON that no cache keeps; what has stopped tells so."""
    told = site.http.get("/show/radix.json")
    assert (told.status_code, told.json()) == (200, {"nodes": []})
    assert told.headers["Content-Type"] == "application/json"
    assert told.headers["Cache-Control"] == "no-store"
    site.client.is_broken = True
    site.refused(site.http.get("/show/radix.json"), 500)


@pytest.mark.parametrize("form", ["pdf", "", "SVG"])
def test_other_formats_are_refused(site, form: str) -> None:
    """With the name of the parameter."""
    refused = site.refused(site.http.get("/show/radix", params={"format": form}))
    assert refused["param"] == "format"


def test_other_rooms_are_not_found(site) -> None:
    """Nor do the routes take a body."""
    site.refused(site.http.get("/show/kitchen"), 404)
    site.refused(site.http.post("/show/radix"), 405)


def test_an_engine_that_has_stopped_cannot_draw(site) -> None:
    """Its failure is an answer in JSON."""
    site.client.is_broken = True
    site.refused(site.http.get("/show/sched"), 500)


def test_drawings_are_behind_the_key() -> None:
    """They tell who asks how much."""
    config = ServerConfig(port=0, api_key="sesame")
    with (
        RunningServer(EchoClient(), config) as server,
        httpx.Client(base_url=server.url) as http,
    ):
        assert http.get("/show/sched").status_code == 401
        assert http.get("/show/sched", headers={"x-api-key": "sesame"}).status_code == 200
