"""Whatever a client sends, the answer is an answer or a clear refusal."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan.server import test_anthropic
from support.site import Site

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
    "/v1/responses": (
        {"input": "x"},
        "input instructions tools tool_choice text include metadata store stream user choices "
        "conversation previous_response_id max_output_tokens top_logprobs truncation",
    ),
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
    "/tokenize": ({"prompt": "x"}, "prompt messages add_special_tokens model"),
    "/detokenize": ({"tokens": [97]}, "tokens skip_special_tokens"),
    "/abort_request": ({"rid": "x"}, "rid abort_all"),
}
LAST_WORDS = {
    "/v1/responses": "event: response.completed\n",
    "/v1/messages": "event: message_stop\n",
}
WORDS = [
    "type",
    "text",
    "image_url",
    "input_text",
    "role",
    "user",
    "message",
    "content",
    "url",
    "image",
    "name",
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
    max_examples=120,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(bodies())
def test_odd_bodies_are_served_or_refused(site: Site, asked: tuple[str, dict]) -> None:
    """Never a 5xx; a refusal and the end of a stream have the form of their surface."""
    route, body = asked
    response = site.http.post(route, json=body)
    if response.status_code != 200:
        assert response.status_code in (400, 404), response.text
        is_anthropic = route.startswith("/v1/messages")
        refused = test_anthropic.refused if is_anthropic else site.refused
        refused(response, response.status_code)
    elif response.headers.get("content-type", "").startswith("text/event-stream"):
        *_, last, end = response.text.split("\n\n")
        assert last.startswith(LAST_WORDS.get(route, "data: [DONE]")), response.text
        assert end == ""
