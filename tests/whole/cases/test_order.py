"""Who starts when: locality where it may count, and nobody passed over for long.

Requests here are endless streams that leave as soon as they have started, so that orders and
counts are exact on a machine of any speed.
"""

from __future__ import annotations

import select
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import pytest
from support.checkpoints import tiny_llava
from support.live import Ghost, Live, live, picture, start_order
from support.oracle import image_part

from mmserve.core import SchedConfig, ServerConfig

STEM = "Once upon a time there was a tree whose roots were shared by all who asked of it."
"""About 80 tokens."""
COLD = "0 Nobody has asked about any of this before. " * 3
NUM_WORKERS = 6


def site_of(server: ServerConfig | None = None, **sched: Any):
    """A server with room for one sequence, unless `sched` says otherwise."""
    config = SchedConfig(**{"max_running": 1, **sched})
    return live(tiny_llava(context=8000), server, num_slots=40_000, sched=config)


class Workers:
    """Six callers who share a prefix and ask again as soon as they have been served."""

    def __init__(self, site: Live, stack: ExitStack, fields: Mapping[str, Any]) -> None:
        self._site, self._stack, self._fields = site, stack, fields
        self._asking: set[Ghost] = set()
        self._late: set[Ghost] = set()
        self._num_sent = 0
        self.num_late_started = 0
        """Started, of those sent after the cold one."""
        for _ in range(NUM_WORKERS):
            self._send(is_late=False)

    def _send(self, *, is_late: bool) -> None:
        text = f"{STEM} {self._num_sent:04d}"
        ghost = self._stack.enter_context(self._site.ghost(text, **self._fields))
        self._num_sent += 1
        self._asking.add(ghost)
        if is_late:
            self._late.add(ghost)

    def serve(self, cold: Ghost | None) -> bool:
        """Wait for starts, and ask again; whether the cold one has started."""
        others = () if cold is None else (cold,)
        started = select.select([*self._asking, *others], [], [], 20)[0]
        assert started
        for ghost in set(started) & self._asking:
            self._asking.remove(ghost)
            self.num_late_started += ghost in self._late
            ghost.leave()
            self._send(is_late=cold is not None)
        num_asking = NUM_WORKERS + len(others)
        self._site.wait(lambda found: found["running"] + found["waiting"] >= num_asking)
        return cold in started


def num_passing(site: Live, hot: Mapping[str, Any], cold: Mapping[str, Any], most: int) -> int:
    """How many who came after a cold request started before it; counted up to `most`."""
    with ExitStack() as stack:
        workers = Workers(site, stack, hot)
        for _ in range(10):
            workers.serve(None)
        ghost = stack.enter_context(site.ghost(COLD, **cold))
        while workers.num_late_started < most and not workers.serve(ghost):
            pass
    site.wait_idle()
    return workers.num_late_started


CALLERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one client": ({}, {}),
    "two users": ({"user": "hot"}, {"user": "cold"}),
    "two keys": ({"key": "hot"}, {"key": "cold"}),
    "two salts": ({"cache_salt": "hot"}, {"cache_salt": "cold"}),
}


@pytest.mark.parametrize(
    ("policy", "callers"),
    [
        *(("longest-prefix", callers) for callers in CALLERS),
        *((policy, "one client") for policy in ("dfs-weight", "shortest-prefill", "fcfs")),
    ],
)
def test_a_cold_request_is_not_starved(policy: str, callers: str) -> None:
    """O-SCH-03: it starts before twenty that came later, whoever they are.

    The flow ends when it has started, in place of after 20 s.
    """
    with site_of(policy=policy, max_running=2) as site:
        assert num_passing(site, *CALLERS[callers], most=20) < 20


def test_pure_locality_promises_nothing() -> None:
    """With fairness off the flow of cache-friendly requests goes first as long as it lasts."""
    with site_of(fairness=False, max_running=2) as site:
        assert num_passing(site, {}, {}, most=40) >= 40


DEPTHS = {"deep": 1.0, "half": 0.5, "shallow": 0.2, "cold": 0.0}
"""Shares of the stem with which questions begin."""


def questions(*names: str, start: int = 0) -> list[dict[str, Any]]:
    """A question for each name, equally long, that shares as much of the stem as it says."""
    asked = []
    for number, name in enumerate(names, start):
        shared = STEM[: int(len(STEM) * DEPTHS[name])]
        rest = f"{number:02d} " * len(STEM)
        asked.append({"text": shared + rest[: 2 * len(STEM) - len(shared)]})
    return asked


BY_PREFIX, BY_ARRIVAL = [2, 5, 1, 4, 0, 3], [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("sched", "want"),
    [
        ({"policy": "longest-prefix"}, BY_PREFIX),
        ({"policy": "longest-prefix", "fairness": False}, BY_PREFIX),
        ({"policy": "shortest-prefill"}, BY_PREFIX),
        ({"policy": "fcfs"}, BY_ARRIVAL),
        ({"policy": "priority"}, BY_ARRIVAL),
    ],
)
def test_a_static_queue_is_served_in_the_policys_order(
    sched: dict[str, Any], want: list[int]
) -> None:
    """O-SCH-03: what has more of its prefix cached goes first, of equals the older one."""
    names = ["cold", "half", "deep"]
    with site_of(**sched) as site:
        assert site.chat(STEM).status_code == 200
        assert start_order(site, questions(*names, *names)) == want


def test_random_order_is_some_order() -> None:
    """Everybody starts once, and not as they came."""
    with site_of(policy="random") as site:
        order = start_order(site, questions(*["cold"] * 9))
    assert sorted(order) == list(range(9))
    assert order != sorted(order)


def test_cached_pictures_count_as_prefixes() -> None:
    """Questions about the picture that is cached go first."""
    seen, unseen = (
        [{"role": "user", "content": [image_part(picture(k)), {"type": "text", "text": "?"}]}]
        for k in (1, 2)
    )
    with site_of() as site:
        assert site.chat(messages=seen).status_code == 200
        asked = [{"messages": messages} for messages in (unseen, seen, unseen, seen)]
        assert start_order(site, asked)[:2] == [1, 3]


@pytest.mark.parametrize(
    "policy", ["longest-prefix", "dfs-weight", "shortest-prefill", "priority"]
)
def test_higher_priorities_go_first(policy: str) -> None:
    """Before what is cached; equal ones in the policy's order."""
    asked = questions("deep", "cold", "deep", "cold")
    for fields, priority in zip(asked, (-1, 0, 0, 7), strict=True):
        fields["priority"] = priority
    with site_of(policy=policy) as site:
        assert site.chat(STEM).status_code == 200
        order = start_order(site, asked)
    assert order == ([3, 1, 2, 0] if policy == "priority" else [3, 2, 1, 0])


@pytest.mark.parametrize("callers", ["two users", "two keys", "two salts"])
def test_a_flood_does_not_starve_others(callers: str) -> None:
    """Two clients with a full queue are served in turns, though one has all the locality."""
    hot, cold = CALLERS[callers]
    asked = [{**q, **hot} for q in questions(*["deep"] * 12)]
    asked += [{**q, **cold} for q in questions(*["cold"] * 4)]
    with site_of(quantum_tokens=200, decode_cost=0) as site:
        assert site.chat(STEM).status_code == 200
        order = start_order(site, asked)
    last_cold = max(order.index(number) for number in range(12, 16))
    assert last_cold < 12


def test_without_fairness_locality_alone_counts() -> None:
    """The whole flood goes first."""
    asked = [{**q, "user": "cold"} for q in questions(*["cold"] * 3)]
    asked += [{**q, "user": "hot"} for q in questions(*["deep"] * 8)]
    with site_of(quantum_tokens=200, fairness=False) as site:
        assert site.chat(STEM).status_code == 200
        assert start_order(site, asked) == [3, 4, 5, 6, 7, 8, 9, 10, 0, 1, 2]


def test_weights_divide_the_service() -> None:
    """A client with three shares starts three times as much as one with one."""
    asked = [{**q, "user": "heavy"} for q in questions(*["cold"] * 12)]
    asked += [{**q, "user": "light"} for q in questions(*["cold"] * 12, start=12)]
    sched = {"quantum_tokens": 160, "decode_cost": 0, "client_weights": (("heavy", 3.0),)}
    with site_of(**sched) as site:
        order = start_order(site, asked)
    assert [sum(n < 12 for n in order[:num]) for num in (8, 12)] == [6, 9]


def test_classes_of_clients_go_one_before_the_other() -> None:
    """All that a client of a higher class has, first; its name is that of its key."""
    keys = (("vip", "gold"), ("rest", "tin"))
    server = ServerConfig(port=0, api_key="of all", client_keys=keys)
    asked = [{**q, "key": "tin", "priority": 9} for q in questions(*["deep"] * 3)]
    asked += [{**q, "user": "vip"} for q in questions(*["deep"] * 1)]
    asked += [{**q, "key": "gold"} for q in questions(*["cold"] * 3)]
    with site_of(server, client_priorities=(("vip", 1),)) as site:
        assert site.chat(STEM).status_code == 200
        order = start_order(site, asked)
    assert order[:3] == [4, 5, 6]
    assert set(order[3:]) == {0, 1, 2, 3}
