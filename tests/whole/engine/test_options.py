"""Options of a request: branches of one prompt, scored together and exactly once."""

from __future__ import annotations

import io
import random
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from mmserve.core import (
    BadRequest,
    Broken,
    Busy,
    BytesSource,
    Constraint,
    ContextTooLong,
    EngineConfig,
    Finish,
    ImagePart,
    MediaRefused,
    Output,
    Part,
    Request,
    RunnerFailed,
    SamplingParams,
    SchedConfig,
    TextPart,
    TokenLogprob,
    TokensPart,
    Turn,
    Usage,
)
from mmserve.engine import Engine, EngineTicket
from mmserve.engine.load import load_parts
from mmserve.engine.option_stream import OptionOutputs
from mmserve.engine.options import tree_of

NOTHING = SamplingParams(max_new_tokens=0, temperature=0.0)
OPTIONS = ("yes", "the thing", "the thin", "no", "the thing in the hand")
WORDS = ("the", " thing", "in", " and", "yes", "é", "日", " ", "e", "re", "th", "👍", "\n")


def picture(seed: int) -> ImagePart:
    """A picture of random blocks."""
    blocks = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(blocks).resize((64, 64)).save(buffer, "PNG")
    return ImagePart(BytesSource(buffer.getvalue()))


def question(*parts: Part | str, begun: str = "", **values) -> Request:
    """A user's turn and an open answer, of which nothing is generated."""
    said = tuple(TextPart(part) if isinstance(part, str) else part for part in parts)
    answer = (TextPart(begun),) if begun else ()
    turns = (Turn("user", said), Turn("assistant", answer, is_open=True))
    return Request(request_id="r", parts=turns, sampling=NOTHING, **values)


def read(ticket: EngineTicket) -> list[Output]:
    """The only output of each sequence, in order."""
    outputs = list(ticket.outputs())
    assert [output.index for output in outputs] == list(range(len(outputs)))
    assert all(output.finish is not None for output in outputs)
    return outputs


def numbers(outputs: list[Output]) -> list[list[float]]:
    """Log-probabilities of each option's tokens."""
    return [[entry.logprob for entry in output.prompt_logprobs] for output in outputs[1:]]


def one_by_one(engine: Engine, request: Request) -> tuple[list[tuple[int, ...]], list]:
    """Ids and numbers by a request for each option, tokens found by the language's rule."""
    bare = replace(request, options=())
    before = engine.submit(bare).report(timeout_s=30).token_ids
    ids, rows = [], []
    for option in request.options:
        *turns, answer = request.parts
        inner = replace(answer, parts=(*answer.parts, TextPart(option)))
        joined = engine.submit(replace(bare, parts=(*turns, inner))).report(30).token_ids
        parts = (TokensPart(joined),)
        if len(joined) <= len(before) or joined[: len(before)] != before:
            parts = (TokensPart((*before, *engine.tokenize(option))),)
        if any(isinstance(part, ImagePart) for turn in turns for part in turn.parts):
            own = parts[0].token_ids[len(before) :]
            parts = (*request.parts, TokensPart(own))
        sampling = replace(NOTHING, return_logprobs=True, prompt_logprobs_from=len(before))
        ticket = engine.submit(replace(bare, parts=parts, sampling=sampling, add_bos="never"))
        ids.append(ticket.report(30).token_ids[len(before) :])
        rows.append([e.logprob for o in ticket.outputs() for e in o.prompt_logprobs or ()])
    return ids, rows


def near(first: list[list[float]], second: list[list[float]]) -> bool:
    """Equal lengths, and equal within a thousandth."""
    return [len(row) for row in first] == [len(row) for row in second] and all(
        abs(a - b) < 1e-3
        for one, two in zip(first, second, strict=True)
        for a, b in zip(one, two, strict=True)
    )


def counted(engine: Engine, name: str) -> int:
    """A counter of the engine."""
    return int(engine.counters()[name])


def wait_for(engine: Engine, name: str, value: int) -> None:
    """Wait until a counter has come to a value."""
    deadline = time.monotonic() + 30.0
    while counted(engine, name) != value:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def open_engine(directory, num_slots: int = 2048, **sched) -> Engine:
    """An engine of its own that checks its ledgers after every step."""
    return Engine.from_config(
        EngineConfig(
            model=str(directory),
            num_slots=num_slots,
            threads=1,
            verify_steps=True,
            sched=SchedConfig(**sched),
        )
    )


@pytest.fixture
def own(tiny_directory) -> Iterator[Engine]:
    """An engine with nothing cached and nothing counted."""
    with open_engine(tiny_directory) as engine:
        yield engine


def test_prompt_and_options_are_one_step(own: Engine) -> None:
    """Cold: one step, one decode, one encode, the prompt's tokens and the tree's, each once."""
    image = picture(1)
    own.prepare(image)
    wait_for(own, "encoded_items_total", 1)
    num_steps = counted(own, "steps_total")
    ticket = own.submit(question(image, "Which?", options=OPTIONS))
    report = ticket.report(timeout_s=30)
    read(ticket)
    places = [{ids[: k + 1] for k in range(len(ids))} for ids in report.options]
    tree = set().union(*places)
    num_looks = sum(mine <= set().union(*places[:k]) for k, mine in enumerate(places))

    assert counted(own, "steps_total") == num_steps + 1
    assert counted(own, "media_decodes_total") == counted(own, "encoded_items_total") == 1
    # an option that adds nothing to the tree looks at its own last token again
    wanted = len(report.token_ids) + len(tree) + num_looks
    assert counted(own, "tokens_computed_total") == wanted


def test_warm_options_cost_their_own_tokens(own: Engine) -> None:
    """A second time only the prompt's last token and the options' are computed, in one step."""
    request = question("Which?", options=("yes", "no", "nothing", "not"))
    first = own.submit(request)
    options = first.report(timeout_s=30).options
    cold = read(first)
    num_tokens, num_steps = (
        counted(own, name) for name in ("tokens_computed_total", "steps_total")
    )
    warm = read(own.submit(request))
    tree = {ids[: k + 1] for ids in options for k in range(len(ids))}

    assert counted(own, "steps_total") == num_steps + 1
    assert counted(own, "tokens_computed_total") - num_tokens <= 1 + len(tree)
    assert near(numbers(cold), numbers(warm))
    assert cold[0].usage.cached_tokens == 0
    assert warm[0].usage.cached_tokens == warm[0].usage.prompt_tokens - 1


def test_a_picture_that_is_not_hinted_at_is_decoded_and_encoded_once(own: Engine) -> None:
    """All options are in the step that encodes it."""
    ticket = own.submit(question(picture(2), "Which?", options=OPTIONS))
    read(ticket)
    assert counted(own, "media_decodes_total") == counted(own, "encoded_items_total") == 1
    assert counted(own, "steps_total") <= 2


def test_the_work_for_a_picture_is_told_once(tiny_directory, monkeypatch) -> None:
    """Each sequence tells the request's time, not that of all sequences together."""
    config = EngineConfig(model=str(tiny_directory), num_slots=2048, threads=1)
    parts = load_parts(config)
    request_pixels = parts.plane.request_pixels

    def timed(items, on_ready) -> None:
        request_pixels(items, lambda *news: on_ready(*news[:3], 5.0, 7.0))

    monkeypatch.setattr(parts.plane, "request_pixels", timed)
    with Engine.from_parts(parts) as engine:
        outputs = read(engine.submit(question(picture(5), "Which?", options=OPTIONS)))
    assert {(o.timing.decode, o.timing.preprocess) for o in outputs} == {(5.0, 7.0)}


def test_sequence_zero_is_the_prompt_itself(own: Engine) -> None:
    """It has the prompt's counts, and its ranking as a request without options."""
    sampling = replace(NOTHING, return_logprobs=True, top_logprobs=3, prompt_logprobs_from=0)
    plain = replace(question("Which?"), sampling=sampling)
    (wanted,) = read(own.submit(plain))
    ticket = own.submit(replace(plain, options=OPTIONS))
    base, *options = read(ticket)

    assert base.usage.prompt_tokens == wanted.usage.prompt_tokens
    assert base.logprobs[0].token_id == wanted.logprobs[0].token_id
    assert len(base.prompt_logprobs) == len(wanted.prompt_logprobs)
    assert [len(option.prompt_logprobs) for option in options] == [
        len(ids) for ids in ticket.report().options
    ]
    assert {len(e.top) for option in options for e in option.prompt_logprobs} == {3}


def drawn(rng: random.Random) -> tuple[str, tuple[str, ...]]:
    """The beginning of an answer, and options: some equal, some begin with another."""
    begun = rng.choice(["", "t", "un", "I see the", " th", "日"])
    options: list[str] = []
    while len(options) < rng.randint(1, 8):
        shared = rng.choice(options) if options and rng.random() < 0.5 else ""
        more = "".join(rng.choices(WORDS, k=rng.randint(0 if shared else 1, 3)))
        options.append(shared + more)
    rng.shuffle(options)
    return begun, tuple(options)


@pytest.mark.parametrize(
    "sched",
    [
        {},
        {"chunk_tokens": 3},
        {"max_step_tokens": 5, "chunk_tokens": 2},
        {"max_running": 2},
        {"page_tokens": 4},
        {"policy": "fcfs", "eviction": "lfu"},
        {"num_slots": 120},
    ],
    ids=["whole", "chunked", "small steps", "two at once", "pages", "fcfs", "few slots"],
)
def test_numbers_are_those_of_a_request_for_each(tiny_directory, sched: dict) -> None:
    """Whatever the options share, and however little fits into a step."""
    rng = random.Random(7)
    with open_engine(tiny_directory) as plain, open_engine(tiny_directory, **sched) as engine:
        for number in range(12):
            begun, options = drawn(rng)
            said = [picture(number % 2)] if number % 3 == 0 else []
            request = question(*said, f"{number}. Which?", begun=begun, options=options)
            ids, rows = one_by_one(plain, request)
            ticket = engine.submit(request)
            assert list(ticket.report(timeout_s=30).options) == ids
            outputs = read(ticket)
            assert near(numbers(outputs), rows), (begun, options)
            assert [
                tuple(entry.token_id for entry in output.prompt_logprobs)
                for output in outputs[1:]
            ] == ids


def test_equal_options_have_equal_numbers(own: Engine) -> None:
    """To the last bit, since each token of the tree has one number."""
    options = ("the thing", "yes", "the thing", "the thing in")
    first, _, third, fourth = numbers(read(own.submit(question("Which?", options=options))))
    assert first == third == fourth[: len(first)]


def test_an_option_that_would_move_the_prompts_tokens_stands_alone(own: Engine) -> None:
    """After "t" the option "he" has its own tokens, though "the" is one token."""
    ticket = own.submit(question("Which?", begun="t", options=("he", "o")))
    report = ticket.report(timeout_s=30)
    read(ticket)
    assert report.token_ids[-1] == own.tokenize("t")[0]
    assert report.options == (tuple(own.tokenize("he")), tuple(own.tokenize("o")))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"options": ("yes", "")}, "empty"),
        ({"sampling": SamplingParams()}, "conflict"),
        ({"sampling": replace(NOTHING, n=2)}, "conflict"),
        ({"sampling": replace(NOTHING, constraint=Constraint("regex", "a"))}, "conflict"),
    ],
)
def test_what_cannot_be_scored_is_refused(own: Engine, change: dict, reason: str) -> None:
    """An empty option, and anything that would be generated."""
    request = replace(question("Which?", options=("yes", "no")), **change)
    with pytest.raises(BadRequest) as refused:
        own.submit(request).report(timeout_s=30)
    assert refused.value.fields["field"] == "options"
    assert refused.value.fields["reason"] == reason


def test_one_option_too_long_refuses_all_of_them(own: Engine) -> None:
    """Nothing runs, nothing is left behind, and the message names the option."""
    long = "the hand " * 400
    ticket = own.submit(question(picture(3), "Which?", options=("yes", long, "no")))
    with pytest.raises(ContextTooLong, match="option 1"):
        list(ticket.outputs())
    assert counted(own, "steps_total") == 0
    assert counted(own, "running") == counted(own, "waiting") == 0


def test_no_room_in_the_line_refuses_all_of_them(tiny_directory) -> None:
    """What has been added by then is taken back before anything runs."""
    with open_engine(tiny_directory, max_waiting=3) as engine:
        with pytest.raises(Busy):
            read(engine.submit(question("Which?", options=OPTIONS)))
        assert counted(engine, "steps_total") == 0
        assert counted(engine, "running") == counted(engine, "waiting") == 0
        assert len(read(engine.submit(question("Which?", options=OPTIONS[:2])))) == 3


def unreadable() -> ImagePart:
    """A picture whose header is good, and whose pixels are noise."""
    good = picture(4).source.content
    start = good.index(b"IDAT")
    size = int.from_bytes(good[start - 4 : start], "big")
    data = b"IDAT" + random.Random(1).randbytes(size)
    data += zlib.crc32(data).to_bytes(4, "big")
    return ImagePart(BytesSource(good[:start] + data + good[start + len(data) :]))


def test_a_picture_that_cannot_be_read_ends_all_of_them(own: Engine) -> None:
    """Every sequence ends with the error, and nothing is left behind."""
    outputs = read(own.submit(question(unreadable(), "Which?", options=("yes", "no"))))
    assert [type(output.finish.error) for output in outputs] == [MediaRefused] * 3
    assert counted(own, "running") == counted(own, "waiting") == 0


def told(endings: dict[int, Finish], *, has_rival: bool = True) -> list[Output]:
    """What a caller hears of the options (5, 6) and (7,), whose sequences end like this."""
    ticket = EngineTicket("r", 3, lambda _ticket: None)
    outputs = OptionOutputs(ticket, tree_of([(5, 6), (7,)]))
    outputs.note(0, 0, TokenLogprob(5, -1.0, b""))
    if has_rival:
        outputs.note(0, 0, TokenLogprob(7, -3.0, b""))
    own = {1: (TokenLogprob(6, -2.0, b""),), 2: ()}
    for index in (2, 0, 1):
        finish = endings.get(index, Finish("length"))
        said = Output("r", index, "", (), Usage(1), (), own.get(index), finish)
        outputs.put(said)
    return read(ticket)


def test_options_are_put_together_in_order() -> None:
    """Whoever ends first; each option has all of its tokens."""
    assert numbers(told({})) == [[-1.0, -2.0], [-3.0]]


@pytest.mark.parametrize("index", [0, 1, 2])
def test_if_one_fails_all_end_as_it_did(index: int) -> None:
    """An option that lacks a number has no score, so nobody has."""
    finish = Finish("error", error=RunnerFailed("no", step=1))
    outputs = told({index: finish})
    assert [output.finish for output in outputs] == [finish] * 3
    assert [output.prompt_logprobs for output in outputs] == [None] * 3


def test_a_number_that_never_came_is_an_error() -> None:
    """It is not taken for zero, and the loop goes on."""
    assert {type(output.finish.error) for output in told({}, has_rival=False)} == {Broken}


def test_cancelling_ends_all_of_them(tiny_directory) -> None:
    """In the middle of their steps, with nothing left behind and the engine at work."""
    with open_engine(tiny_directory, max_step_tokens=1) as engine:
        options = tuple(f"{k} the thing in the hand" for k in range(20))
        request = question("Which is it of all these?", options=options)
        ticket = engine.submit(request)
        ticket.report(timeout_s=30)
        wait_for_more(engine, "tokens_computed_total", 20)
        ticket.cancel()
        outputs = read(ticket)
        assert {output.finish.reason for output in outputs} == {"abort"}
        assert len(outputs) == 21
        assert all(output.prompt_logprobs is None for output in outputs)
        wait_for(engine, "running", 0)
        assert counted(engine, "waiting") == 0
        assert engine.flush_cache(timeout_s=5.0)
        assert len(read(engine.submit(replace(request, options=options[:2])))) == 3


def wait_for_more(engine: Engine, name: str, value: int) -> None:
    """Wait until a counter has come to at least a value."""
    deadline = time.monotonic() + 30.0
    while counted(engine, name) < value:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_tree_scores_every_place_once() -> None:
    """By its parent's sequence: as its own next token, or as a rival."""
    rng = random.Random(11)
    for _ in range(300):
        options = [rng.choices(range(3), k=rng.randint(1, 5)) for _ in range(rng.randint(1, 8))]
        tree = tree_of(options)
        prefixes = {tuple(ids[: k + 1]) for ids in options for k in range(len(ids))}
        scored = [
            tree.place(sequence, offset, token_id)
            for sequence, rivals in enumerate(tree.rivals)
            for offset, token_id in rivals
        ]
        for option, places in enumerate(tree.places):
            scored += places[tree.first_own(option) :]
        assert sorted(scored) == list(range(1, len(prefixes) + 1))
        assert {place for places in tree.places for place in places} == set(scored)
