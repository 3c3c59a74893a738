"""Fork and join: what children inherit, what the parent gets back."""

from __future__ import annotations

import asyncio
import time

import pytest

import mmserve.lang as sgl
from mmserve.core import (
    Aborted,
    BackendFailed,
    BytesSource,
    ImagePart,
    ProgramMisuse,
    TextPart,
    Turn,
)
from mmserve.testing.fake_client import FakeClient


def run(client, body, **values):
    """Run a body without parameters."""
    return sgl.function(body).run(backend=client, **values)


def test_children_inherit_text_media_turns_and_variables(client):
    """Forked in an open turn with a picture, both children see the picture."""

    def body(s):
        s += sgl.system("S")
        s += sgl.user_begin() + sgl.image(b"P")
        s["v"] = 1
        forks = s.fork(2)
        for child, text in zip(forks, "ab", strict=True):
            child += text + sgl.user_end() + sgl.assistant(sgl.gen("x", max_tokens=4))
        assert [child["v"] for child in forks] == [1, 1]
        forks.join()

    run(client, body)
    prompts = [request.parts for request in client.requests[1:]]

    assert sorted(parts[1].parts[1].text for parts in prompts) == ["a", "b"]
    assert {parts[1].parts[0] for parts in prompts} == {ImagePart(BytesSource(b"P"))}


def test_a_branch_equals_a_separate_program(client):
    """A child's answers are those of a program without forks."""

    def forked(s):
        s += sgl.user(sgl.image(b"P") + "Q")
        forks = s.fork(3)
        for index, child in enumerate(forks):
            child += sgl.user(f"{index}") + sgl.assistant(sgl.gen("x", max_tokens=4))
        forks.join()

    def alone(s, index):
        s += sgl.user(sgl.image(b"P") + "Q")
        s += sgl.user(f"{index}") + sgl.assistant(sgl.gen("x", max_tokens=4))

    program = sgl.function(alone)

    assert run(client, forked)["x"] == [
        program.run(index, backend=client)["x"] for index in range(3)
    ]


def test_the_shared_prefix_is_sent_once_before_the_children(client):
    """One call computes it; the children's hits cover it."""

    def body(s):
        s += "a long shared text "
        forks = s.fork(4)
        forks += lambda index: f"{index}" + sgl.gen("x", max_tokens=1)
        forks.join()

    state = run(client, body)
    prefix = client.requests[0]
    num_prefix = state.get_meta_info("x")[0]["prompt_tokens"] - 1

    assert prefix.sampling.max_new_tokens == 0
    assert prefix.parts == (TextPart("a long shared text "),)
    assert len(client.requests) == 1 + 4
    assert all(meta["cached_tokens"] >= num_prefix for meta in state.get_meta_info("x"))


@pytest.mark.parametrize("size", [1, 2])
def test_nothing_is_sent_for_a_fork_without_new_content(client, size):
    """An empty state, or one whose content a call has just computed, needs no extra call."""

    def body(s):
        first = s.fork(size)
        first.join()
        s += "a" + sgl.gen("x", max_tokens=1)
        second = s.fork(size)
        second += sgl.gen("y", max_tokens=1)
        second.join()

    run(client, body)

    assert all(request.sampling.max_new_tokens == 1 for request in client.requests)


def test_a_prefix_that_cannot_be_computed_ahead_is_nobodys_failure(client):
    """Only calls of the program fail: the parent and a child that asks nothing go on."""

    def body(s):
        s += "BOOM"
        forks = s.fork(2)
        forks[0] += sgl.gen("x", max_tokens=1)
        return forks

    state = run(client, body)
    asking, idle = state.ret_value

    assert state.text() == idle.text() == "BOOM"
    with pytest.raises(BackendFailed):
        asking["x"]


def test_the_parent_need_not_wait_for_a_fork():
    """The parent's call and the children's are under way together."""
    client = FakeClient(delay_s=5.0)

    def body(s):
        s += "a"
        forks = s.fork(2)
        forks += sgl.gen("x", max_tokens=4)
        s += "b" + sgl.gen("y", max_tokens=4)

    state = run(client, body)
    deadline = time.monotonic() + 4
    while len(client.tickets) < 4 and time.monotonic() < deadline:
        time.sleep(0.005)
    num_running = client.num_running
    state.cancel()

    assert num_running == 3


def test_join_gathers_each_name_made_after_the_fork(client):
    """In order of the children, None where missing, with meta info."""

    def body(s):
        s["old"] = "kept"
        forks = s.fork(2)
        forks[0] += "a" + sgl.gen("x", max_tokens=2)
        forks[1] += "b" + sgl.gen("x", max_tokens=2) + sgl.gen("y", max_tokens=1)
        forks.join()
        return [child["x"] for child in forks]

    state = run(client, body)

    assert state["x"] == state.ret_value
    assert state["y"][0] is None
    assert state["old"] == "kept"
    assert [meta["completion_tokens"] for meta in state.get_meta_info("x")] == [2, 2]
    assert state.get_meta_info("y")[0] is None


def test_values_convert_through_a_join(rule_client):
    """A joined name gives a list of converted values."""
    client = rule_client(lambda prompt, request: "7")

    def body(s):
        forks = s.fork(2)
        forks += "a" + sgl.gen("x", dtype=int)
        forks.join()

    assert run(client, body).value("x") == [7, 7]


def test_children_texts_are_appended_in_order(client):
    """`concate_and_append` appends text and media, and the parent goes on."""

    def body(s):
        s += sgl.user_begin() + "docs: "
        forks = s.fork(2)
        forks += lambda index: f"doc{index} " + sgl.image(f"p{index}".encode())
        forks.join("concate_and_append")
        s += sgl.user_end() + sgl.assistant(sgl.gen("y", max_tokens=2))

    state = run(client, body)
    state.sync()

    assert client.requests[-1].parts[0] == Turn(
        "user",
        (
            TextPart("docs: doc0 "),
            ImagePart(BytesSource(b"p0")),
            TextPart("doc1 "),
            ImagePart(BytesSource(b"p1")),
        ),
    )
    assert state["y"]


def test_children_outside_the_forks_turn_cannot_be_appended(client):
    """All must stand in the role of the fork."""

    def body(s):
        forks = s.fork(1)
        forks += sgl.user("q")
        forks.join("concate_and_append")

    with pytest.raises(ProgramMisuse):
        run(client, body)


def test_a_list_gives_each_child_its_own(client):
    """`g += [e0, e1]` is one each; a wrong count is an error."""

    def body(s):
        forks = s.fork(2)
        forks += ["a", "b"]
        with pytest.raises(ProgramMisuse):
            forks += ["c"]
        return [child.text() for child in forks]

    assert run(client, body).ret_value == ["a", "b"]


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_a_fork_of_no_children_is_an_error(client, size):
    """The size is at least 1."""
    with pytest.raises(ProgramMisuse):
        run(client, lambda s: s.fork(size))


def test_the_offset_that_never_had_an_effect_warns(client):
    """One warning, and the fork works."""
    with pytest.warns(UserWarning, match="no effect"):
        run(client, lambda s: s.fork(1, position_ids_offset=[0]))


def test_joined_children_can_be_read_but_not_appended_to(client):
    """Appending raises instead of hanging."""

    def body(s):
        forks = s.fork(1)
        forks += "a" + sgl.gen("x", max_tokens=1)
        forks.join()
        with pytest.raises(ProgramMisuse):
            forks[0] += "more"
        return forks[0].text()

    state = run(client, body)

    assert state.ret_value == "a" + state["x"][0]


def test_a_failed_child_makes_join_raise_and_cancels_its_siblings(slow_client):
    """The siblings' calls are aborted."""

    def body(s):
        forks = s.fork(2)
        forks[1] += "a" + sgl.gen("x")
        forks[0] += "BOOM" + sgl.gen("x")
        forks.join()

    with pytest.raises(BackendFailed):
        run(slow_client, body)

    assert [ticket.is_cancelled.is_set() for ticket in slow_client.tickets].count(True) >= 1


def test_keep_puts_the_exception_in_its_place(client):
    """Two entries, the first of them the error."""

    def body(s):
        forks = s.fork(2)
        forks[0] += "BOOM" + sgl.gen("x", max_tokens=1)
        forks[1] += "a" + sgl.gen("x", max_tokens=1)
        forks.join(on_error="keep")

    state = run(client, body)

    assert isinstance(state["x"][0], BackendFailed)
    assert len(state["x"]) == 2
    assert state.get_meta_info("x")[0] is None


def test_children_come_as_they_complete(slow_client):
    """The shorter answer comes first; `index` says which it is."""

    def body(s):
        forks = s.fork(2)
        forks[0] += "a" + sgl.gen("x", max_tokens=8)
        forks[1] += "b" + sgl.gen("x", max_tokens=1)
        return [child.index for child in forks.as_completed("x")]

    assert run(slow_client, body).ret_value == [1, 0]


def test_children_come_as_they_complete_in_an_event_loop(slow_client):
    """`async for` gives the same order."""

    def body(s):
        forks = s.fork(2)
        forks[0] += "a" + sgl.gen("x", max_tokens=8)
        forks[1] += "b" + sgl.gen("x", max_tokens=1)
        return forks

    async def main():
        forks = run(slow_client, body).ret_value
        return [child.index async for child in forks.as_completed()]

    assert asyncio.run(main()) == [1, 0]


def test_a_cancelled_group_raises_aborted_when_read(slow_client):
    """Its calls are aborted."""

    def body(s):
        s += "a"
        forks = s.fork(2)
        forks += sgl.gen("x")
        forks.cancel()
        return forks

    forks = run(slow_client, body).ret_value
    with pytest.raises(Aborted):
        forks[0]["x"]


def test_a_copy_is_a_fork_of_one_that_joins(client):
    """Its names come back as lists of one."""

    def body(s):
        s += "a"
        with s.copy() as child:
            child += "b" + sgl.gen("x", max_tokens=1)

    state = run(client, body)

    assert len(state["x"]) == 1
    assert state.text() == "a"


def test_forks_of_forks_work(client):
    """Children fork again, and join level by level."""

    def body(s):
        outer = s.fork(2)
        for child in outer:
            inner = child.fork(2)
            inner += lambda index: f"{index}" + sgl.gen("x", max_tokens=1)
            inner.join()
        outer.join()

    assert [len(row) for row in run(client, body)["x"]] == [2, 2]
