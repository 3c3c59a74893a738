"""Routes that tell about the server, and those that keep it."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mmserve.core import RunnerFailed, series_key
from mmserve.server.counts import Counts
from mmserve.server.watch.metrics import metrics_text
from mmserve.server.watch.metrics_help import HELP, help_of


def test_the_model_is_listed(site) -> None:
    """One model, by the name that requests use."""
    listed = site.http.get("/v1/models").json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["echo"]


def test_a_model_is_told_by_name(site) -> None:
    """The one served; others are not found."""
    assert site.http.get("/v1/models/echo").json()["id"] == "echo"
    site.refused(site.http.get("/v1/models/gpt-9"), 404)


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
def test_model_facts(site, path: str) -> None:
    """What native clients read."""
    facts = site.http.get(path).json()
    assert facts["model_path"] == facts["tokenizer_path"] == "echo"
    assert facts["is_generation"] is True
    assert facts["has_image_understanding"] is True
    assert facts["context_length"] == 4096


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_server_facts(site, path: str) -> None:
    """Settings, version, counters, and the list that clients index."""
    facts = site.http.get(path).json()
    assert facts["internal_states"] == [{}]
    assert facts["settings"]["max_body_bytes"] == 200_000
    assert facts["version"]
    assert facts["counters"]["steps_total"] == 7


def test_health_tells_the_truth(site) -> None:
    """Ready while the client lives; 503 with a time to come back when it does not."""
    assert site.http.get("/health").status_code == 200
    site.client.is_broken = True
    response = site.http.get("/health")
    site.refused(response, 503)
    assert response.headers["Retry-After"]
    assert site.http.get("/livez").status_code == 200


def test_health_by_generating(site) -> None:
    """One greedy token through the engine."""
    assert site.http.get("/health_generate").status_code == 200
    sampling = site.client.requests[-1].sampling
    assert (sampling.max_new_tokens, sampling.temperature) == (1, 0)
    site.client.refusals["a"] = RunnerFailed("dead")
    site.refused(site.http.get("/health_generate"), 503)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_flushing(site, method: str) -> None:
    """A line of text, or a 400 while requests run; odd timeouts are refused."""
    assert site.http.request(method, "/flush_cache?timeout=1").status_code == 200
    site.client.is_busy = True
    site.refused(site.http.request(method, "/flush_cache"))
    for odd in ("x", "-1", "nan", "1e9"):
        site.refused(site.http.request(method, f"/flush_cache?timeout={odd}"))


@pytest.mark.parametrize("root", ["", "/v1"])
def test_tokens_and_back(site, root: str) -> None:
    """Texts and lists of texts, ids and lists of ids."""
    one = site.post(f"{root}/tokenize", prompt="hé").json()
    assert one == {"tokens": [104, 195, 169], "count": 3, "max_model_len": 4096}
    several = site.post(f"{root}/tokenize", prompt=["a", "bc"], add_special_tokens=True).json()
    assert several["tokens"] == [[256, 97], [256, 98, 99]]
    assert several["count"] == [2, 3]
    assert site.post(f"{root}/detokenize", tokens=[97, 257]).json() == {"text": "a"}
    kept = {"tokens": [[97], [257]], "skip_special_tokens": False}
    assert site.post(f"{root}/detokenize", **kept).json() == {"text": ["a", "</s>"]}


def test_tokens_of_a_conversation(site) -> None:
    """The prompt that a chat call would have; nothing is generated."""
    messages = [{"role": "user", "content": "ab"}]
    ids = site.post("/tokenize", messages=messages).json()["tokens"]
    answer = site.chat("ab", return_token_ids=True).json()
    assert ids == answer["prompt_token_ids"]
    assert site.client.requests[0].sampling.max_new_tokens == 0


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": 5}),
        ("/tokenize", {"prompt": ["a", 5]}),
        ("/tokenize", {"prompt": "a", "x": 1}),
        ("/detokenize", {"tokens": "a"}),
        ("/detokenize", {"tokens": [300]}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [[97], 98]}),
        ("/abort_request", {}),
        ("/concate_and_append_request", {"src_rids": "x", "dst_rid": "y"}),
    ],
)
def test_wrong_bodies_are_refused(site, path: str, fields: dict) -> None:
    """Each names what is wrong."""
    assert site.refused(site.post(path, **fields))["param"]


def test_joining_is_the_clients_work(site) -> None:
    """The route is there, and does nothing."""
    answer = site.post("/concate_and_append_request", src_rids=["a"], dst_rid="b")
    assert answer.json() == {"mode": "text"}


def test_metrics_parse(site) -> None:
    """A strict parser reads them; no series comes twice; counters end in `_total`."""
    site.chat("x")
    site.chat("x", n=0)
    families = list(text_string_to_metric_families(site.http.get("/metrics").text))
    series = [(s.name, tuple(sorted(s.labels.items()))) for f in families for s in f.samples]
    assert len(series) == len(set(series))
    assert all(name.startswith("mmserve_") for name, _ in series)
    assert {f.type for f in families for s in f.samples if s.name.endswith("_total")} == {
        "counter"
    }
    assert ("mmserve_finished_total", (("reason", "stop"),)) in series


def test_server_counts_requests_and_errors(site) -> None:
    """By route and status, by code; unknown paths share one label."""

    def counted() -> dict[str, float]:
        return site.http.get("/server_info").json()["counters"]

    before = counted()
    site.chat("x", n=0)
    site.http.get("/nope")
    after = counted()
    for key in (
        'http_requests_total{route="/v1/chat/completions",status="400"}',
        'http_requests_total{route="other",status="404"}',
        'request_errors_total{code="bad_request"}',
    ):
        assert after[key] - before.get(key, 0) == 1


def test_series_of_several_sources_add_up() -> None:
    """One series in two sources is one series."""
    counts = Counts()
    counts.add("ends_total", reason="stop")
    text = metrics_text({'ends_total{reason="stop"}': 2}, counts.series()).decode()
    assert 'mmserve_ends_total{reason="stop"} 3.0' in text


def test_labels_of_any_text_reach_the_page(site) -> None:
    """Names that callers chose stand in labels, and a strict parser reads them back."""
    words = 'a"b\\c\nd,e="f"}'
    text = metrics_text({series_key("client_running", client=words): 2.0}).decode()
    (family,) = text_string_to_metric_families(text)
    assert [(s.labels, s.value) for s in family.samples] == [({"client": words}, 2.0)]


def test_every_own_series_says_what_it_means(site) -> None:
    """The page of a server has the words written down for its counters."""
    site.chat("x")
    site.chat("x", n=0)
    families = text_string_to_metric_families(site.http.get("/metrics").text)
    told = {family.name.removeprefix("mmserve_"): family.documentation for family in families}
    for name in ("http_requests", "request_errors", "finished"):
        assert told[name] == HELP[f"{name}_total"]


def test_help_is_one_line_that_ends(site) -> None:
    """Each is a sentence or more of its own."""
    assert all(words.endswith(".") and "\n" not in words for words in HELP.values())
    assert len(set(HELP.values())) == len(HELP)


def test_a_series_without_help_has_its_name(site) -> None:
    """Other clients may count what is not written down here."""
    assert help_of("odd_things_total") == "odd things."


def test_the_scheduler_is_told(site) -> None:
    """Its settings, and the hit rate of the latest requests beside the optimum."""
    assert site.http.get("/server_info").json()["scheduler"] == {
        "policy": "fcfs",
        "eviction": "lru",
        "fairness": False,
        "recent_hit_rate": 0.5,
        "recent_optimal_hit_rate": 0.75,
    }


def test_rates_before_the_first_request_are_null(site) -> None:
    """Nothing of nothing is no rate."""
    site.client.recent = (0, 0, 0)
    told = site.http.get("/server_info").json()["scheduler"]
    assert told["recent_hit_rate"] is told["recent_optimal_hit_rate"] is None
