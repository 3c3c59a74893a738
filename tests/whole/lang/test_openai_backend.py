"""The OpenAI backend on a real engine: the same answers as RuntimeEndpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import mmserve as sgl
from mmserve.core import RawPart, Request, SamplingParams, ServerConfig, TokensPart
from mmserve.engine import Engine, locate_model
from mmserve.server import RunningServer
from mmserve.testing import scene
from mmserve.testing.clips import clip

GREEDY = {"temperature": 0, "max_new_tokens": 12}
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green", "blue"]}, "count": {"type": "integer"}},
    "required": ["colour", "count"],
    "additionalProperties": False,
}
TEMPLATE = Path(locate_model("tabletop")) / "chat_template.jinja"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """The model that sees, with ledgers checked."""
    with Engine(model="tabletop", threads=1, verify_steps=True) as engine:
        yield engine


@pytest.fixture(scope="module")
def url(engine: Engine) -> Iterator[str]:
    """A server in front of it."""
    with RunningServer(engine, ServerConfig(port=0)) as server:
        yield server.url


@pytest.fixture(scope="module")
def endpoint(url: str) -> Iterator[sgl.RuntimeEndpoint]:
    """By its native routes."""
    with sgl.RuntimeEndpoint(url) as backend:
        yield backend


@pytest.fixture(scope="module")
def chat(url: str) -> Iterator[sgl.OpenAI]:
    """By its chat route, with everything that it takes."""
    extensions = ["regex", "ebnf", "top_k", "min_tokens", "ignore_eos", "max_pixels"]
    with sgl.OpenAI(
        "tabletop",
        api_key="k",
        base_url=f"{url}/v1",
        max_retries=0,
        extensions=extensions,
        frames=True,
    ) as backend:
        yield backend


@pytest.fixture(scope="module")
def plain(url: str) -> Iterator[sgl.OpenAI]:
    """By its completions route, with the model's own template."""
    settings = {"api_key": "k", "base_url": f"{url}/v1", "max_retries": 0}
    with sgl.OpenAI("tabletop", False, TEMPLATE, **settings) as backend:
        yield backend


def run(backend, body, *args, **values):
    """Run a body greedily."""
    return sgl.function(body).run(*args, backend=backend, **{**GREEDY, **values})


def two_pictures(s, first, second):
    """A question about two pictures, and another after its answer."""
    s += sgl.system("Look.")
    s += sgl.user(
        "A" + sgl.image(first) + "B" + sgl.image(second) + "How many objects are there?"
    )
    s += sgl.assistant(sgl.gen("x"))
    s += sgl.user("Is there a cross?") + sgl.assistant(sgl.gen("y"))


def test_answers_about_two_pictures_are_the_endpoints(chat, endpoint):
    """Same texts and prompts, before and after a swap, which changes the prompt's numbers."""
    pictures = (scene(7).image, scene(11).image)
    for pair in (pictures, pictures[::-1]):
        states = [
            run(backend, two_pictures, *pair, return_logprob=True)
            for backend in (chat, endpoint)
        ]
        metas = [[state.get_meta_info(name) for name in ("x", "y")] for state in states]

        assert [state["x"] for state in states] == [states[0]["x"]] * 2
        assert [state["y"] for state in states] == [states[0]["y"]] * 2
        for ours, theirs in zip(*metas, strict=True):
            for count in ("prompt_tokens", "completion_tokens", "image_tokens"):
                assert ours[count] == theirs[count]
            numbers = [[row[0] for row in m["output_token_logprobs"]] for m in (ours, theirs)]
            assert numbers[0] == pytest.approx(numbers[1], abs=1e-3)


@pytest.mark.parametrize(
    "options",
    [
        {"json_schema": SCHEMA, "max_tokens": 40},
        {"regex": "[a-d]{3} [0-9]{2}"},
        {"dtype": int},
        {"dtype": bool},
        {"ebnf": 'root ::= "x" [0-9]+ "y"'},
        {"min_tokens": 5},
        {"ignore_eos": True, "max_tokens": 20},
        {"top_k": 1, "temperature": 1.0},
        {"stop": "e"},
        {"temperature": 1.0, "seed": 5},
        {"temperature": 1.0, "seed": 5, "n": 2, "frequency_penalty": 1.5},
    ],
)
def test_values_have_the_endpoints_effect(chat, endpoint, options):
    """Constraints, lengths, seeds and penalties."""

    def body(s):
        s += sgl.user(sgl.image(scene(3).image) + "What is there?")
        s += sgl.assistant(sgl.gen("x", **options))

    states = [run(backend, body) for backend in (chat, endpoint)]

    assert states[0]["x"] == states[1]["x"]
    if "json_schema" in options:
        assert set(states[0].value("x")) == {"colour", "count"}


def test_a_clip_is_seen_as_its_frames(chat):
    """Four frames are four pictures."""
    content = clip(1_000_000).mp4

    def body(s, frames):
        s += sgl.user(sgl.video(content, frames) + "?") + sgl.assistant(sgl.gen("x"))

    metas = [run(chat, body, frames).get_meta_info("x") for frames in (4, 1)]

    assert metas[0]["image_tokens"] == 4 * metas[1]["image_tokens"] > 0


def test_completions_are_the_endpoints(plain, endpoint):
    """Text outside turns as it stands; turns by the model's own template."""

    def outside(s):
        s += "There are" + sgl.gen("x") + " and" + sgl.gen("y", max_tokens=3)

    def turns(s):
        s += sgl.system("Look.") + sgl.user("How many objects are there?")
        s += sgl.assistant("There are " + sgl.gen("x", stop=".") + "." + sgl.gen("y"))
        s += sgl.user("Sure?") + sgl.assistant(sgl.gen("z"))

    for body in (outside, turns):
        states = [run(backend, body) for backend in (plain, endpoint)]

        assert states[0].text() == states[1].text()
        names = "xy" if body is outside else "xyz"
        counts = [[s.get_meta_info(name)["prompt_tokens"] for name in names] for s in states]
        assert counts[0] == counts[1]


def brute_force(engine: Engine, prompt: str, options: list[str]) -> str:
    """The rule by exact scores: the likeliest token that goes on with an option, each time."""
    chosen = ""
    while True:
        possible = [text for text in options if text.startswith(chosen)]
        if len(set(possible)) == 1:
            return possible[0]
        longer = [text for text in possible if text != chosen]
        allowed = sorted({engine.tokenize(text[len(chosen) :])[0] for text in longer})
        if chosen in possible:
            token = next_token(engine, prompt + chosen)
        else:
            token = max(allowed, key=lambda one: score(engine, prompt + chosen, one))
        spelled = chosen + engine.detokenize([token])
        if chosen in possible and not any(text.startswith(spelled) for text in longer):
            return chosen
        chosen = spelled


def score(engine: Engine, prompt: str, token: int) -> float:
    """Log-probability of a token after a prompt."""
    length = len(engine.submit(asking_for((RawPart(prompt),))).report().token_ids)
    request = asking_for((RawPart(prompt), TokensPart((token,))), length)
    numbers = [
        n for output in engine.submit(request).outputs() for n in output.prompt_logprobs or ()
    ]
    return numbers[-1].logprob


def next_token(engine: Engine, prompt: str) -> int:
    """The likeliest token after a prompt."""
    sampling = SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True)
    request = Request(request_id="next", parts=(RawPart(prompt),), sampling=sampling)
    outputs = list(engine.submit(request).outputs())
    return next(token for output in outputs for token in output.token_ids)


def asking_for(parts, first: int | None = None) -> Request:
    """A request that generates nothing."""
    sampling = SamplingParams(
        max_new_tokens=0, return_logprobs=first is not None, prompt_logprobs_from=first
    )
    return Request(request_id="score", parts=parts, sampling=sampling)


@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        ("The colour is", [" red", " green", " blue", " yellow"]),
        ("How many? ", ["one", "two", "three", "ten", "none"]),
        ("Is there a cross? ", ["yes", "yes, there is", "no", "no, there is none"]),
        ("The", [" circle", " circles", " cross", " crosses are"]),
    ],
)
def test_a_choice_by_bias_is_the_rules_winner(plain, engine, prompt, options):
    """As if every allowed token were scored."""

    def body(s):
        s += prompt + sgl.select("c", options) + "!"

    state = run(plain, body)

    assert state["c"] == brute_force(engine, prompt, options)
    assert state.text() == f"{prompt}{state['c']}!"
