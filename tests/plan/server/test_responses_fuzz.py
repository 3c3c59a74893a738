"""Made-up bodies for `/v1/responses`."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

WORDS = ["type", "text", "role", "user", "message", "content", "input_text", "name", "format"]
FIELDS = [
    "input",
    "instructions",
    "tools",
    "tool_choice",
    "text",
    "include",
    "metadata",
    "store",
    "stream",
    "user",
    "conversation",
    "previous_response_id",
    "max_output_tokens",
    "top_logprobs",
    "truncation",
    "choices",
]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 10**20)
    | st.floats(-1, 9)
    | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(WORDS), inner | st.sampled_from(WORDS), max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(FIELDS), VALUES, min_size=1, max_size=2))
def test_odd_bodies_are_served_or_refused(site, odd) -> None:
    """Never a 5xx; a refusal has its form."""
    response = site.http.post("/v1/responses", json={"input": "x", **odd})
    if response.status_code != 200:
        assert response.status_code in (400, 404), response.text
        site.refused(response, response.status_code)
    elif response.headers["content-type"].startswith("text/event-stream"):
        assert "event: response.completed\n" in response.text
