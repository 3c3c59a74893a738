"""Whatever a client sends to `/v1/messages` and `/v1/systemone`, it is served or refused."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan.server.test_anthropic import refused
from plan.server.test_fuzz import VALUES
from support.site import Site

ROUTES: dict[str, tuple[dict[str, Any], str]] = {
    "/v1/messages": (
        {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4},
        "messages max_tokens system stop_sequences temperature top_p top_k tools tool_choice "
        "metadata stream thinking service_tier cache_control output_config regex num_frames",
    ),
    "/v1/messages/count_tokens": (
        {"messages": [{"role": "user", "content": "x"}]},
        "messages system tools tool_choice thinking cache_control output_config cache_salt",
    ),
    "/v1/systemone": (
        {"state": "x", "questions": [{"type": "yes_no"}]},
        "state messages questions model user cache_salt priority rid return_timing num_frames",
    ),
}


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A route, and a good body of it in which one or two fields hold anything."""
    route = draw(st.sampled_from(sorted(ROUTES)))
    good, names = ROUTES[route]
    odd = draw(st.dictionaries(st.sampled_from(names.split()), VALUES, min_size=1, max_size=2))
    return route, {**good, **odd}


@settings(
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(bodies())
def test_odd_bodies_are_served_or_refused(
    site: Site, asked: tuple[str, dict[str, Any]]
) -> None:
    """Never a 5xx; a refusal has the form of its surface."""
    route, body = asked
    response = site.http.post(route, json=body)
    if response.status_code == 200:
        return
    assert response.status_code in (400, 404), response.text
    if route == "/v1/systemone":
        site.refused(response, response.status_code)
    else:
        refused(response, response.status_code)
