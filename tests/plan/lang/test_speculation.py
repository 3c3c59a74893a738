"""Speculation for black-box APIs, on fake ones that answer by a script and count calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

import mmserve as sgl
from mmserve.core import (
    Aborted,
    BackendFailed,
    CallTimeout,
    Finish,
    Output,
    ProgramMisuse,
    Request,
    UnsupportedByBackend,
    Usage,
)
from mmserve.lang import ClientBackend
from mmserve.lang.backends.abilities import Abilities
from mmserve.lang.surplus import Surplus, cut
from mmserve.testing.fake_client import FakeClient

FORM = "Name: Ann\nAge: 7\nCity: Rome\nEnd."
COMPLETION = Abilities(
    parameters=frozenset({"n", "seed", "return_logprob"}),
    has_free_text=True,
    has_partial_turns=True,
)
CHAT = Abilities(parameters=frozenset({"n", "seed"}))


class Api(ClientBackend):
    """A black box: what `rule` says follows each prompt, told with or without its tokens."""

    def __init__(
        self,
        rule: Callable[[str, Request], str],
        abilities: Abilities,
        *,
        delay_s: float = 0.0,
    ) -> None:
        self.fake = FakeClient(rule, delay_s=delay_s)
        super().__init__(self.fake)
        self._abilities = abilities

    @property
    def abilities(self) -> Abilities:
        """What the test says."""
        return self._abilities

    @property
    def calls(self) -> list[Request]:
        """Calls that ask for text."""
        return [call for call in self.fake.requests if call.sampling.max_new_tokens != 0]


def goes_on(text: str) -> Callable[[str, Request], str]:
    """A model that writes `text`, from wherever the prompt has got in it."""

    def rule(prompt: str, _request: Request) -> str:
        said = prompt.rpartition("<s>")[2]
        done = max(k for k in range(len(text) + 1) if said.endswith(text[:k]))
        return text[done:]

    return rule


def replies(texts: Sequence[str]) -> Callable[[str, Request], str]:
    """A model that gives these replies in turn, the last again and again."""
    left = list(texts)
    return lambda _prompt, _request: left.pop(0) if len(left) > 1 else left[0]


@sgl.function(num_api_spec_tokens=40)
def form(s):
    """A form of three fields."""
    s += "Name:" + sgl.gen("name", stop="\n", max_tokens=20)
    s += "\nAge:" + sgl.gen("age", stop=["\n", "!"], max_tokens=20)
    s += "\nCity:" + sgl.gen("city", stop="\n", max_tokens=20)


@sgl.function(num_api_spec_tokens=40)
def chat_form(s):
    """The same in one assistant turn."""
    s += sgl.user("Fill in the form.")
    s += sgl.assistant(
        "Name:"
        + sgl.gen("name", stop="\n", max_tokens=20)
        + "\nAge:"
        + sgl.gen("age", stop=["\n", "!"], max_tokens=20)
        + "\nCity:"
        + sgl.gen("city", stop="\n", max_tokens=20)
    )


def test_three_fields_cost_one_call():
    """A completion that goes on as the program does answers all its gens."""
    api = Api(goes_on(FORM), COMPLETION)
    state = form.run(temperature=0, backend=api)
    assert [state[name] for name in ("name", "age", "city")] == [" Ann", " 7", " Rome"]
    assert state.text() == "Name: Ann\nAge: 7\nCity: Rome"
    assert len(api.calls) == 1
    assert api.calls[0].sampling.max_new_tokens == 40
    assert api.calls[0].sampling.stop == ()


def test_values_are_those_without_speculation():
    """The same program without speculation gives the same values by three calls."""
    api = Api(goes_on(FORM), COMPLETION)
    plain = sgl.function(form.function).run(temperature=0, backend=api)
    assert len(plain.text()) and len(api.calls) == 3
    assert plain.text() == form.run(temperature=0, backend=api).text()


def test_another_constant_text_drops_the_surplus():
    """A mismatch costs the surplus only: the next gen is a call of its own."""
    api = Api(goes_on("Name: Ann\nJob: baker\nAge: 7\n"), COMPLETION)
    state = form.run(temperature=0, backend=api)
    assert state["name"] == " Ann"
    assert state["age"] == "Name: Ann"  # what this model says behind "Age:"
    assert len(api.calls) > 1


def test_a_value_has_at_most_max_tokens_tokens():
    """Surplus beyond a gen's `max_tokens` is not in its value, and the reason is length."""
    api = Api(goes_on("abcdefghij"), COMPLETION)

    @sgl.function(num_api_spec_tokens=8)
    def program(s):
        s += ">" + sgl.gen("x", max_tokens=3, stop="\n") + sgl.gen("y", max_tokens=4, stop="\n")
        s += sgl.gen("z", max_tokens=2)

    state = program.run(temperature=0, backend=api)
    assert [state[name] for name in "xyz"] == ["abc", "defg", "hi"]
    assert state.get_meta_info("x")["finish_reason"] == {"type": "length", "length": 3}
    assert [call.sampling.max_new_tokens for call in api.calls] == [8, 8]


def test_a_surplus_used_up_before_a_stop_is_asked_on():
    """A stop that lies beyond the surplus, even across its end, ends the value."""
    api = Api(goes_on("abcd--efgh"), COMPLETION)

    @sgl.function(num_api_spec_tokens=5)
    def program(s):
        s += ">" + sgl.gen("x", max_tokens=50, stop="--") + "--" + sgl.gen("y", max_tokens=3)

    state = program.run(temperature=0, backend=api)
    assert (state["x"], state["y"]) == ("abcd", "efg")
    assert state.get_meta_info("x")["finish_reason"] == {"type": "stop", "matched": "--"}


def test_a_model_that_ends_ends_the_value():
    """The end of the API's own answer is the end of the value that reaches it."""
    api = Api(goes_on("Name: Ann"), COMPLETION)
    state = form.run(temperature=0, backend=api)
    assert state["name"] == " Ann"
    assert state.get_meta_info("name")["finish_reason"]["type"] == "stop"


def test_unknown_token_boundaries_are_asked_plainly():
    """Where only token boundaries could tell, the surplus is dropped and the gen is a call."""

    class Untold(Api):
        def start(self, request):
            plain = request.sampling
            return super().start(
                replace(request, sampling=replace(plain, return_logprobs=False))
            )

    api = Untold(goes_on("abcdefghij"), COMPLETION)

    @sgl.function(num_api_spec_tokens=8)
    def program(s):
        s += ">" + sgl.gen("x", max_tokens=3, stop="\n") + sgl.gen("y", max_tokens=4, stop="\n")

    state = program.run(temperature=0, backend=api)
    assert (state["x"], state["y"]) == ("abc", "defg")


def test_forks_inherit_the_surplus_and_part():
    """Each child takes from its own copy of the surplus."""
    api = Api(goes_on(FORM), COMPLETION)

    @sgl.function(num_api_spec_tokens=40)
    def program(s):
        s += "Name:" + sgl.gen("name", stop="\n", max_tokens=20)
        forks = s.fork(3)
        forks += "\nAge:" + sgl.gen("age", stop="\n", max_tokens=20)
        forks.join()

    state = program.run(temperature=0, backend=api)
    assert state["age"] == [" 7"] * 3
    assert len(api.calls) == 1


@pytest.mark.parametrize("program", [form, chat_form])
@pytest.mark.parametrize("num_threads", [1, 16])
def test_batches_speculate_row_by_row(program, num_threads):
    """Sixteen rows give sixteen times the same values, with one call each."""
    is_chat = program is chat_form
    rule = replies([FORM]) if is_chat else goes_on(FORM)
    api = Api(rule, CHAT if is_chat else COMPLETION)
    states = program.run_batch([{}] * 16, temperature=0, num_threads=num_threads, backend=api)
    assert {(s["name"], s["age"], s["city"]) for s in states} == {(" Ann", " 7", " Rome")}
    assert len(api.calls) == 16


def test_streams_release_accepted_text_only():
    """What a reader sees joins to the value; surplus and stops never show."""
    api = Api(goes_on(FORM), COMPLETION, delay_s=0.001)
    state = form.run(temperature=0, backend=api, stream=True)
    assert "".join(state.text_iter("age")) == " 7"
    assert "".join(state.text_iter()) == "Name: Ann\nAge: 7\nCity: Rome"


def test_a_chat_turn_is_one_call_at_its_end():
    """The gens of a turn are parted from one reply, which the API is not given in part."""
    api = Api(replies([FORM]), CHAT)
    state = chat_form.run(temperature=0, backend=api)
    assert [state[name] for name in ("name", "age", "city")] == [" Ann", " 7", " Rome"]
    assert state.messages()[-1]["content"] == "Name: Ann\nAge: 7\nCity: Rome"
    assert len(api.calls) == 1
    assert api.calls[0].parts[-1].parts == ()
    assert state.get_meta_info("age")["finish_reason"] == {"type": "stop", "matched": "\n"}


def test_a_reply_of_another_form_is_asked_for_again():
    """Up to three tries; the third reply has the form."""
    api = Api(replies(["Sure!\n", "Name: Ann\nCity: Rome\n", FORM]), CHAT)
    state = chat_form.run(temperature=0, backend=api)
    assert state["city"] == " Rome"
    assert len(api.calls) == 3


def test_three_replies_of_another_form_are_an_error_when_read():
    """The run itself does not raise; reading does, with the type of a backend's fault."""
    api = Api(replies(["Sure!"]), CHAT)
    state = chat_form.run(temperature=0, backend=api)
    with pytest.raises(BackendFailed, match="none of 3 replies"):
        _ = state["age"]
    assert len(api.calls) == 3


def test_reading_inside_the_open_turn_is_a_misuse():
    """It raises instead of waiting for a call that is made at the turn's end."""
    api = Api(replies([FORM]), CHAT)

    @sgl.function(num_api_spec_tokens=40)
    def program(s, read):
        s += sgl.user("Go.")
        with s.assistant():
            s += sgl.gen("name", stop="\n") + "\nAge:" + sgl.gen("age", stop="\n")
            read(s)

    def join_forks(s):
        s.fork(2).join()

    for read in (
        lambda s: s["name"],
        lambda s: s.text(),
        lambda s: list(s.text_iter("age")),
        join_forks,
    ):
        with pytest.raises(ProgramMisuse, match="inside its turn"):
            program.run(read, backend=api)


def test_what_one_call_cannot_answer_is_refused_at_the_append():
    """Gens of one turn need a stop each but the last, equal values, and one answer each."""
    api = Api(replies([FORM]), CHAT)

    @sgl.function(num_api_spec_tokens=40)
    def program(s, first, second):
        s += sgl.user("Go.")
        s += sgl.assistant(first + "\nAge:" + second)

    age = sgl.gen("age")
    for first, second, kind, words in (
        (sgl.gen("name"), age, ProgramMisuse, "no stop"),
        (sgl.gen("name", stop="\n", temperature=0.5), age, ProgramMisuse, "differ"),
        (sgl.gen("name", stop="\n", n=2), age, UnsupportedByBackend, "n for several"),
    ):
        with pytest.raises(kind, match=words):
            program.run(first, second, backend=api)
    assert api.calls == []


def test_without_speculation_a_later_gen_is_refused():
    """The message names the way out."""
    api = Api(replies([FORM]), CHAT)
    with pytest.raises(UnsupportedByBackend, match="num_api_spec_tokens"):
        sgl.function(chat_form.function).run(backend=api)


def test_texts_and_scopes_behind_a_gen_keep_their_order():
    """Constants after the last gen and scopes inside the turn are as without speculation."""
    api = Api(replies(["A: 1\nB: 2\nrest"]), CHAT)

    @sgl.function(num_api_spec_tokens=40)
    def program(s):
        s += sgl.user("Go.")
        with s.assistant():
            with s.var_scope("both"):
                s += "A:" + sgl.gen("a", stop="\n") + "\nB:" + sgl.gen("b", stop="\n")
            s += " (end)"

    state = program.run(temperature=0, backend=api)
    assert state["both"] == "A: 1\nB: 2"
    assert state.messages()[-1]["content"] == "A: 1\nB: 2 (end)"


def test_a_gen_alone_in_its_turn_is_a_plain_call():
    """Nothing is lost where nothing is speculated: stops go to the API, n gives a list."""
    api = Api(replies(["yes\nno"]), CHAT)

    @sgl.function(num_api_spec_tokens=40)
    def program(s):
        s += sgl.user("Go.") + sgl.assistant(sgl.gen("x", n=2, stop="\n"))

    state = program.run(temperature=0, backend=api)
    assert state["x"] == ["yes", "yes"]
    assert api.calls[0].sampling.stop == ("\n",)


@sgl.function(num_api_spec_tokens=40)
def alone(s):
    """A turn of one gen."""
    s += sgl.user("Go.") + sgl.assistant(sgl.gen("x", stop="\n"))


def test_a_gen_alone_in_its_turn_fails_when_its_call_does():
    """The error of the call is the error of the value; nobody waits on."""

    def refuse(_prompt, _request):
        raise AssertionError

    class Down(Api):
        def start(self, request):
            raise BackendFailed("down", status=500)

    state = alone.run(backend=Down(refuse, CHAT))
    with pytest.raises(BackendFailed, match="down"):
        _ = state["x"]


def test_a_gen_alone_in_its_turn_ends_with_its_state():
    """A time limit and a cancel in the middle of the call reach its value."""
    slow = Api(replies([FORM]), CHAT, delay_s=30)
    with pytest.raises(CallTimeout):
        _ = alone.run(backend=slow, timeout_s=0.05)["x"]
    state = alone.run(backend=slow, stream=True)
    while not slow.calls:
        time.sleep(0.001)
    state.cancel()
    with pytest.raises(Aborted):
        _ = state["x"]


def test_stops_and_values_of_the_run_count():
    """A gen that inherits its stop has one, and values are equal however they are given."""
    api = Api(replies([FORM]), CHAT)

    @sgl.function(num_api_spec_tokens=40)
    def program(s):
        s += sgl.user("Go.")
        s += sgl.assistant("Name:" + sgl.gen("a", temperature=0.5) + "\nAge:" + sgl.gen("b"))

    state = program.run(backend=api, stop="\n", temperature=0.5)
    assert (state["a"], state["b"]) == (" Ann", " 7")
    with pytest.raises(ProgramMisuse, match="differ"):
        program.run(backend=api, stop="\n", temperature=0.6)


def test_time_limits_are_no_sampling_values():
    """Gens of one turn may have limits of their own; the call keeps the shortest."""
    api = Api(replies([FORM]), CHAT)

    @sgl.function(num_api_spec_tokens=40)
    def program(s):
        s += sgl.user("Go.")
        first = sgl.gen("a", stop="\n", timeout_s=60)
        s += sgl.assistant("Name:" + first + "\nAge:" + sgl.gen("b", stop="\n"))

    assert program.run(backend=api)["b"] == " 7"


def test_a_picture_among_the_gens_of_a_turn_is_refused():
    """The reply holds no pictures, so the turn cannot be parted by it; nothing is dropped."""
    api = Api(replies([FORM]), CHAT)

    @sgl.function(num_api_spec_tokens=40)
    def program(s):
        s += sgl.user("Go.")
        s += sgl.assistant("Name:" + sgl.image(b"picture") + sgl.gen("a", stop="\n"))

    state = program.run(backend=api)
    with pytest.raises(UnsupportedByBackend, match="media among the gens"):
        _ = state["a"]
    assert api.calls == []


def test_forks_that_wait_for_the_end_of_their_turn_complete():
    """They are given, since nothing more comes, and reading them is the misuse that it is."""
    api = Api(replies([FORM]), CHAT)

    @sgl.function(num_api_spec_tokens=40)
    def program(s):
        s += sgl.user("Go.") + sgl.assistant_begin()
        forks = s.fork(2)
        forks += sgl.gen("x", stop="\n")
        for child in forks.as_completed("x"):
            with pytest.raises(ProgramMisuse, match="inside its turn"):
                _ = child["x"]
        return forks

    assert len(program.run(backend=api).ret_value) == 2


def test_a_text_that_nobody_counted_has_a_token_a_byte_at_most():
    """Where an API tells neither tokens nor their number, `max_tokens` is not overrun."""
    output = Output("id", 0, "abcd", (), Usage(0), finish=Finish("length"))
    surplus = Surplus().extended([output])
    assert surplus.most_tokens == 4
    with pytest.raises(LookupError):
        cut(surplus, (), 3)


def test_the_former_word_is_refused_by_name():
    """Programs of the paper's time are told the word of today."""
    with pytest.raises(TypeError, match="num_api_spec_tokens"):
        sgl.function(api_num_spec_tokens=40)


@pytest.mark.parametrize("program", [form, chat_form])
def test_a_call_without_an_end_is_a_failure_of_the_backend(program):
    """An API that says nothing gives no empty values, and is not asked again."""

    class Mute(Api):
        def start(self, request):
            self.num_asked = getattr(self, "num_asked", 0) + 1
            return MuteCall()

    class MuteCall:
        def outputs(self):
            return iter(())

        def cancel(self):
            return None

    api = Mute(replies([FORM]), CHAT if program is chat_form else COMPLETION)
    state = program.run(backend=api)
    with pytest.raises(BackendFailed, match="without an end"):
        _ = state["name"]
    assert api.num_asked == 1
