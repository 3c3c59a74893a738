"""Whatever a client sends, the answer is an answer or a clear refusal."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ROUTES = {
    "/v1/chat/completions": (
        {"messages": [{"role": "user", "content": "x"}]},
        "messages model stream stream_options temperature n stop logit_bias logprobs user seed "
        "top_logprobs response_format choices regex max_tokens tools metadata rid num_frames",
    ),
    "/v1/completions": (
        {"prompt": "x"},
        "prompt echo logprobs best_of stream max_tokens stop json_schema cache_salt priority",
    ),
    "/generate": (
        {"text": "x"},
        "text input_ids parts image_data video_data sampling_params return_logprob rid stream "
        "logprob_start_len top_logprobs_num modalities choices extra_key lora_path incremental",
    ),
    "/tokenize": ({"prompt": "x"}, "prompt messages add_special_tokens model"),
    "/detokenize": ({"tokens": [97]}, "tokens skip_special_tokens"),
    "/abort_request": ({"rid": "x"}, "rid abort_all"),
}
WORDS = [
    "type",
    "text",
    "image_url",
    "role",
    "user",
    "content",
    "url",
    "image",
    "parts",
    "open",
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


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, dict]:
    """A route, and a good body of it in which one or two fields hold anything."""
    route = draw(st.sampled_from(sorted(ROUTES)))
    good, names = ROUTES[route]
    odd = draw(st.dictionaries(st.sampled_from(names.split()), VALUES, min_size=1, max_size=2))
    return route, {**good, **odd}


@settings(
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(bodies())
def test_odd_bodies_are_served_or_refused(site, asked: tuple[str, dict]) -> None:
    """Never a 5xx; a refusal has its form and names a field or its reason."""
    route, body = asked
    response = site.http.post(route, json=body)
    if response.status_code != 200:
        assert response.status_code in (400, 404), response.text
        site.refused(response, response.status_code)
    elif response.headers.get("content-type", "").startswith("text/event-stream"):
        assert response.text.endswith("data: [DONE]\n\n"), response.text
