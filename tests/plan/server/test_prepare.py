"""Hints over HTTP: which parts reach the client, for whom, and what is refused."""

from __future__ import annotations

import base64

import pytest

from mmserve.core import BytesSource, FramesSource, ImagePart, UrlSource, VideoPart

PNG = b"\x89PNG\r\n\x1a\n" + bytes(4) + b"IEND" + bytes(4)
ITEM = base64.b64encode(PNG).decode()


def test_hints_reach_the_client_as_the_parts_of_a_request(site) -> None:
    """Pictures and clips are read as in `/generate`, in order, with salt and client."""
    media = [
        {"image": ITEM},
        {"image": {"url": "http://h/a", "max_pixels": 100}},
        {"video": {"url": "http://h/b", "num_frames": 3, "end_s": 2}},
        {"video": {"frames": [ITEM, ITEM], "fps": 2}},
    ]
    response = site.post("/prepare", media=media, cache_salt="s", user="ann")
    assert (response.status_code, response.json()) == (200, {"accepted": 4})
    frames = FramesSource((BytesSource(PNG), BytesSource(PNG)), 2.0)
    assert site.client.prepared == [
        (ImagePart(BytesSource(PNG)), "s", "ann"),
        (ImagePart(UrlSource("http://h/a"), max_pixels=100), "s", "ann"),
        (VideoPart(UrlSource("http://h/b"), num_frames=3, end_s=2.0), "s", "ann"),
        (VideoPart(frames), "s", "ann"),
    ]


def test_values_for_all_media_are_those_of_a_request(site) -> None:
    """A request's own field for its clips stands at the top, as it does there."""
    assert site.post("/prepare", media=[{"video": "http://h/b"}], num_frames=5).is_success
    assert site.client.prepared == [(VideoPart(UrlSource("http://h/b"), num_frames=5), "", "")]


def test_an_uploaded_file_may_be_named(site) -> None:
    """Its content is what the client is told of."""
    files = {"file": ("a.png", PNG, "image/png"), "purpose": (None, "vision")}
    name = site.http.post("/v1/files", files=files).json()["id"]
    assert site.post("/prepare", media=[{"image": name}]).is_success
    assert site.client.prepared == [(ImagePart(BytesSource(PNG)), "", "")]


def test_a_salt_names_the_client_without_another_name(site) -> None:
    """As for requests: what is done for a hint is charged to whoever will ask."""
    site.post("/prepare", media=[{"image": ITEM}], cache_salt="s")
    site.post("/generate", text="x", cache_salt="s")
    (_, salt, client) = site.client.prepared[0]
    assert (salt, client) == ("s", site.client.requests[0].client)


def test_no_media_is_no_error(site) -> None:
    """Nothing is accepted, and nothing done."""
    assert site.post("/prepare", media=[]).json() == {"accepted": 0}
    assert site.client.prepared == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "media"),
        ({"media": {"image": ITEM}}, "media"),
        ({"media": [{"text": "x"}]}, "media[0]"),
        ({"media": [{"image": ITEM}, {"image": ITEM, "video": ITEM}]}, "media[1]"),
        ({"media": [{"image": "ftp://h/a"}]}, "media[0].image"),
        ({"media": [{"image": ITEM, "x": 1}]}, "media[0].x"),
        ({"media": [{"image": ITEM}] * 65}, "media"),
        ({"media": [{"image": ITEM}], "cache_salt": 3}, "cache_salt"),
        ({"media": [{"image": ITEM}], "x": 1}, "x"),
    ],
)
def test_a_body_that_is_no_hint_is_refused(site, fields, param) -> None:
    """With the field's name, before anything is hinted at."""
    assert site.refused(site.post("/prepare", **fields))["param"] == param
    assert site.client.prepared == []
