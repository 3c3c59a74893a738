"""The engine in this process: sharing, endings, seeds, failures."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from mmserve.core import (
    Aborted,
    BadRequest,
    BytesSource,
    Constraint,
    ContextTooLong,
    EngineConfig,
    ForwardPlan,
    ImagePart,
    MediaRefused,
    Pending,
    Request,
    RunnerFailed,
    SamplingParams,
    SchedConfig,
    TextPart,
    TokensPart,
    Turn,
)
from mmserve.engine import Engine, EngineTicket, collect

GREEDY = SamplingParams(max_new_tokens=8, temperature=0.0, ignore_eos=True)


def picture(seed: int) -> ImagePart:
    """A picture of random blocks."""
    blocks = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(blocks).resize((64, 64)).save(buffer, "PNG")
    return ImagePart(BytesSource(buffer.getvalue()))


def ask(engine: Engine, *parts: TextPart | ImagePart, sampling: SamplingParams = GREEDY):
    """A ticket for one user turn."""
    turns = (Turn("user", parts), Turn("assistant", (), is_open=True))
    return engine.submit(Request(request_id="r", parts=turns, sampling=sampling))


@pytest.fixture(params=[2048, 8], ids=["whole", "chunked"])
def fresh(request: pytest.FixtureRequest, tiny_directory) -> Iterator[Engine]:
    """An engine of its own, with whole prompts or pieces of 8 tokens."""
    config = EngineConfig(
        model=str(tiny_directory),
        num_slots=2048,
        threads=1,
        verify_steps=True,
        sched=SchedConfig(chunk_tokens=request.param),
    )
    with Engine.from_config(config) as engine:
        yield engine


def test_eight_questions_pay_for_their_picture_once(fresh: Engine) -> None:
    """One decode, one encode, and prefix once + eight suffixes of prompt tokens computed."""
    image = picture(1)
    tickets = [ask(fresh, image, TextPart(f"{k}. Which?")) for k in range(8)]
    prompts = [ticket.report(timeout_s=30).token_ids for ticket in tickets]
    for ticket in tickets:
        collect(ticket.outputs())
    lengths = {len(prompt) for prompt in prompts}
    assert len(lengths) == 1
    shared = next(
        i for i, column in enumerate(zip(*prompts, strict=True)) if len(set(column)) > 1
    )
    counters = fresh.counters()
    assert counters["media_decodes_total"] == 1
    assert counters["encoded_items_total"] == 1
    least = shared + 8 * (lengths.pop() - shared)
    assert counters["prompt_tokens_computed_total"] == least


def test_a_cached_picture_is_not_decoded_again(fresh: Engine) -> None:
    """A second question about a cached picture decodes nothing and computes its own tokens."""
    image = picture(2)
    collect(ask(fresh, image, TextPart("first")).outputs())
    before = fresh.counters()
    answer = collect(ask(fresh, image, TextPart("second")).outputs())
    after = fresh.counters()
    assert after["media_decodes_total"] == before["media_decodes_total"] == 1
    assert after["encoded_items_total"] == before["encoded_items_total"] == 1
    assert answer.usage.cached_image_tokens == answer.usage.image_tokens


def test_a_seeded_answer_does_not_depend_on_neighbours(engine: Engine) -> None:
    """The same seed gives the same answer alone and among others; other seeds differ."""
    sampling = SamplingParams(max_new_tokens=12, temperature=1.0, seed=5, ignore_eos=True)
    alone = collect(ask(engine, TextPart("hello"), sampling=sampling).outputs())
    noise = [ask(engine, TextPart(f"noise {k}")) for k in range(5)]
    among = collect(ask(engine, TextPart("hello"), sampling=sampling).outputs())
    for ticket in noise:
        collect(ticket.outputs())
    other = SamplingParams(max_new_tokens=12, temperature=1.0, seed=6, ignore_eos=True)
    assert among.token_ids == alone.token_ids
    different = collect(ask(engine, TextPart("hello"), sampling=other).outputs())
    assert different.token_ids != alone.token_ids


def test_n_answers_share_one_prompt(engine: Engine) -> None:
    """N sampled answers differ, the first is the answer for n = 1, greedy ones are equal."""
    one = SamplingParams(max_new_tokens=12, temperature=1.0, seed=5, ignore_eos=True)
    three = SamplingParams(max_new_tokens=12, temperature=1.0, seed=5, ignore_eos=True, n=3)
    single = collect(ask(engine, TextPart("many"), sampling=one).outputs())
    several = collect(ask(engine, TextPart("many"), sampling=three).outputs())
    assert several.token_ids[0] == single.token_ids[0]
    assert len(set(several.token_ids)) == 3
    greedy = SamplingParams(max_new_tokens=6, temperature=0.0, ignore_eos=True, n=2)
    assert len(set(collect(ask(engine, TextPart("x"), sampling=greedy).outputs()).texts)) == 1


def test_stop_texts_end_exactly(engine: Engine) -> None:
    """An answer ends before the first stop text, wherever it lies across tokens."""
    sampling = SamplingParams(max_new_tokens=40, temperature=0.0, ignore_eos=True)
    whole = collect(ask(engine, TextPart("stop"), sampling=sampling).outputs()).text
    for start, end in [(3, 5), (4, 9), (10, 14)]:
        stop = whole[start:end]
        sampling = SamplingParams(
            max_new_tokens=40, temperature=0.0, ignore_eos=True, stop=(stop,)
        )
        answer = collect(ask(engine, TextPart("stop"), sampling=sampling).outputs())
        assert answer.text == whole[: whole.index(stop)]
        assert answer.finishes[0].reason == "stop"
        assert answer.finishes[0].matched == stop


def test_constrained_answers_match(engine: Engine) -> None:
    """A regex and options hold for the whole answer."""
    pattern = r"[ab]{3}-[0-9]{2}"
    sampling = SamplingParams(
        max_new_tokens=64, temperature=1.0, seed=1, constraint=Constraint("regex", pattern)
    )
    answer = collect(ask(engine, TextPart("code"), sampling=sampling).outputs())
    assert re.fullmatch(pattern, answer.text)
    assert answer.finishes[0].reason == "stop"


def test_cancelling_ends_with_abort_and_frees_slots(engine: Engine) -> None:
    """A cancelled request ends once, with abort; nothing is held afterwards."""
    sampling = SamplingParams(max_new_tokens=400, temperature=0.0, ignore_eos=True)
    ticket = ask(engine, TextPart("long"), sampling=sampling)
    seen = []
    for output in ticket.outputs():
        seen.append(output)
        ticket.cancel()
    assert [o.finish.reason for o in seen if o.finish] == ["abort"]
    assert len(seen) < 400
    engine.flush_cache(timeout_s=5)
    assert engine.counters()["slots_held"] == 0


def test_cancelling_before_it_began_is_a_refusal(engine: Engine) -> None:
    """A ticket cancelled at once never hangs its reader."""
    ticket = ask(engine, picture(3), TextPart("?"))
    ticket.cancel()
    try:
        outputs = list(ticket.outputs())
    except Aborted:
        return
    assert outputs[-1].finish is not None


@pytest.mark.parametrize(
    ("parts", "sampling", "error"),
    [
        ((TextPart("x" * 3000),), GREEDY, ContextTooLong),
        ((ImagePart(BytesSource(b"nothing")),), GREEDY, MediaRefused),
        ((TextPart("x"),), SamplingParams(top_p=0.0), BadRequest),
        ((TextPart("x"),), SamplingParams(logit_bias=((10**6, 1.0),)), BadRequest),
        ((TextPart("x"),), SamplingParams(temperature=float("nan")), BadRequest),
    ],
)
def test_what_cannot_be_served_is_refused(engine: Engine, parts, sampling, error) -> None:
    """Refusals are typed and come before any output; neighbours are unharmed."""
    good = ask(engine, TextPart("good"))
    bad = ask(engine, *parts, sampling=sampling)
    with pytest.raises(error):
        bad.report(timeout_s=30)
    with pytest.raises(error):
        list(bad.outputs())
    assert collect(good.outputs()).finishes[0].reason == "length"


def test_scores_of_a_prompt_are_the_models(engine: Engine) -> None:
    """Prompt scores begin where asked, first of all with none, and agree with generation."""
    generated = SamplingParams(
        max_new_tokens=4, temperature=0.0, ignore_eos=True, return_logprobs=True
    )
    prompt = tuple(engine.tokenize("abcdefgh"))
    base = (1, *prompt)

    def call(token_ids: tuple[int, ...], sampling: SamplingParams):
        request = Request(request_id="s", parts=(TokensPart(token_ids),), sampling=sampling)
        return collect(engine.submit(request).outputs())

    answer = call(base, generated)
    longer = base + answer.token_ids[0]
    scoring = SamplingParams(max_new_tokens=0, prompt_logprobs_from=0)
    scored = call(longer, scoring).prompt_logprobs
    assert len(scored) == len(longer)
    assert scored[0].logprob is None
    ours = [entry.logprob for entry in scored[len(base) :]]
    theirs = [entry.logprob for entry in answer.logprobs[0]]
    np.testing.assert_allclose(ours, theirs, atol=1e-3)
    late = SamplingParams(max_new_tokens=0, prompt_logprobs_from=len(base))
    again = call(longer, late).prompt_logprobs
    np.testing.assert_allclose([entry.logprob for entry in again], ours, atol=1e-3)


class _Faulty:
    """A runner that fails once, at one step after being armed."""

    def __init__(self, runner) -> None:
        self._runner = runner
        self.is_armed = False

    looks_ahead = False

    def launch(self, plan: ForwardPlan, _begun=None) -> Pending:
        if self.is_armed:
            self.is_armed = False
            raise RunnerFailed("injected", step=plan.step)
        return self._runner.launch(plan)


def test_a_failed_step_ends_its_rows_only(fresh: Engine) -> None:
    """Rows of a failed step end with an error; the engine and later requests go on."""
    faulty = _Faulty(fresh._loop._runner)
    fresh._loop._runner = faulty
    before = collect(ask(fresh, picture(4), TextPart("q")).outputs())
    faulty.is_armed = True
    with pytest.raises(RunnerFailed):
        collect(ask(fresh, picture(5), TextPart("q")).outputs())
    assert collect(ask(fresh, picture(4), TextPart("q")).outputs()).texts == before.texts
    collect(ask(fresh, picture(5), TextPart("q")).outputs())
    assert fresh.counters()["slots_held"] == 0


def test_closing_ends_everything(tiny_directory) -> None:
    """After close, open requests have ended and new ones are refused; nothing hangs."""
    engine = Engine(model=str(tiny_directory), num_slots=1024, threads=1)
    sampling = SamplingParams(max_new_tokens=450, temperature=0.0, ignore_eos=True)
    tickets = [ask(engine, TextPart(f"{k}"), sampling=sampling) for k in range(3)]
    for ticket in tickets:
        ticket.report(timeout_s=30)
    engine.close()
    ends: list[EngineTicket] = []
    for ticket in tickets:
        reader = threading.Thread(target=lambda t=ticket: ends.append(list(t.outputs())[-1]))
        reader.start()
        reader.join(timeout=10)
    assert [end.finish.reason for end in ends] == ["abort"] * 3
    late = ask(engine, TextPart("late"))
    with pytest.raises(Exception, match="closed"):
        late.report(timeout_s=5)


def test_plain_calls(engine: Engine) -> None:
    """`generate` and `chat` answer, stream, and take pictures beside a prompt."""
    sampling = {"max_new_tokens": 5, "temperature": 0.0}
    blocks = Image.new("RGB", (64, 64), "red")
    answer = engine.generate("<|user|><image>Hi", images=[blocks], sampling_params=sampling)
    assert answer.usage.image_tokens > 0
    chat = engine.chat([{"role": "user", "content": "Hi"}], sampling_params=sampling)
    streamed = engine.chat(
        [{"role": "user", "content": "Hi"}], sampling_params=sampling, stream=True
    )
    assert "".join(output.text for output in streamed) == chat.text
    with pytest.raises(BadRequest):
        engine.generate("x", sampling_params={"max_tokens": 5})
    for message in ({"role": "user"}, "hi", {"role": "user", "content": ["hi"]}):
        with pytest.raises(BadRequest):
            engine.chat([message])


def test_ends_are_counted_as_their_callers_heard_them(engine: Engine) -> None:
    """A stop text that completes with the last allowed token counts as a stop."""
    ended = 'finished_total{reason="stop"}'
    letters = Constraint("choices", '["abcdefgh"]')
    cut = SamplingParams(max_new_tokens=4, temperature=0.0, constraint=letters)
    whole = collect(ask(engine, TextPart("end"), sampling=cut).outputs())
    assert whole.finishes[0].reason == "length"
    before = engine.counters()[ended]
    stopped = replace(cut, stop=(whole.text[-1],))
    answer = collect(ask(engine, TextPart("end"), sampling=stopped).outputs())
    assert answer.finishes[0].reason == "stop"
    assert engine.counters()[ended] == before + 1


def test_another_chat_template_may_be_brought(tiny_directory, tmp_path) -> None:
    """As Jinja text or as a file of it: prompts are what it renders, for all requests."""
    text = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}>"
    file = tmp_path / "own.jinja"
    file.write_text(text)
    prompts = []
    for brought in (text, str(file)):
        config = EngineConfig(model=str(tiny_directory), threads=1, chat_template=brought)
        with Engine.from_config(config) as engine:
            ids = ask(engine, TextPart("Hi")).report().token_ids
            prompts.append(engine.detokenize(ids, skip_special_tokens=False))
    assert prompts[0].endswith("[user]Hi>")
    assert prompts[0] == prompts[1]


def test_a_chat_template_that_is_neither_text_nor_file_is_refused(tiny_directory) -> None:
    """The message shows what was given."""
    config = EngineConfig(model=str(tiny_directory), chat_template="no/such.jinja")
    with pytest.raises(BadRequest, match=r"no/such\.jinja"):
        Engine.from_config(config)
