"""A house under random load: whatever comes, in whatever order, all promises are checked.

One seed is one run: a random configuration, arrivals, hints, aborts, failures and pixels for so
many steps; then arrivals stop, everything must end, and every answer is compared with the
answer alone. The suite runs a few seeds, `benchmarks/soak.py` thousands.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import lru_cache

from plan.sched.driver import EOS, Driver, alone, picture, prompt
from plan.sched.promises import Ledger, Promises, charges, check_budgets

from mmserve.core import Finish, MediaRefused, RunnerFailed, SchedConfig
from mmserve.sched import SequenceSpec
from mmserve.sched.order.rules import RULES

__all__ = ["Machine", "random_config"]

SIZES = {"A": 4, "B": 6, "C": 9, "D": 13, "E": 2, "F": 1, "G": 3}
"""Tokens of pictures; the last two are only hinted at."""
CONTEXT = 100
_CLOSE = 1e-6
_LARGE = 40
"""Nodes."""
_MAX_STEPS_TO_END = 20_000


def random_config(chance: random.Random) -> tuple[int, SchedConfig]:
    """Slots of a small pool, and a configuration with odd budgets."""
    page_tokens = chance.choice([1, 1, 1, 2, 3, 4, 7, 16, 64])
    config = SchedConfig(
        page_tokens=page_tokens,
        chunk_tokens=chance.choice([1, 3, 8, 20, 1024]),
        max_step_tokens=chance.choice([1, 4, 16, 40, 2048]),
        max_running=chance.choice([1, 2, 4, 16]),
        feature_cache_tokens=chance.choice([8, 20, 1000]),
        max_step_patches=chance.choice([1, 8, 30, 1000]),
        policy=chance.choice(
            ["longest-prefix"] * 4
            + ["fcfs", "priority", "dfs-weight", "shortest-prefill", "random"]
        ),
        eviction=chance.choice(["lru", "lru", "lfu", "slru", "cost"]),
        fairness=chance.random() < 0.75,
        quantum_tokens=chance.choice([1, 10, 50, 500]),
        client_weights=chance.choice([(), (("a", 2.0), ("b", 0.5))]),
        client_priorities=chance.choice([(), (), (("b", 1), ("c", -1))]),
        decode_cost=chance.choice([0.0, 2.0]),
        patch_cost=chance.choice([0.0, 0.25]),
        media_ms_cost=chance.choice([0.0, 1.0]),
        max_sweep_joiners=chance.choice([0, 1, 8]),
        max_passes=chance.choice([0, 1, 4, 16]),
        history_tokens=chance.choice([None, None, 0, 30]),
        radix_cache=chance.random() < 0.93,
        target_itl_ms=chance.choice([None, None, 0.7, 2.0]),
    )
    return chance.choice([101, 128, 128, 300, 640]), config


class _Arrivals:
    """Prompts from few beginnings, few pictures, and answers of before."""

    def __init__(self, chance: random.Random, room_tokens: int) -> None:
        self._chance = chance
        self._room_tokens = room_tokens
        self._is_atomic = chance.random() < 0.25
        self._has_media = chance.random() < 0.7
        self._kind = chance.choice(["image", "image", "video"])
        self.lengths = chance.choice([(0, 1, 2, 5, 5, 12, 45), (1, 2), (5, 90), (60, 90)])
        self._clients = chance.choice([("",), ("a", "b"), ("a", "b", "c", "d")])
        self._past: list[list[int]] = []

    def remember(self, token_ids: list[int]) -> None:
        """A text conversation that may go on."""
        if len(token_ids) < self._room_tokens - 3:
            self._past.append(token_ids)

    def prompt(self):
        """The next prompt."""
        chance = self._chance
        namespace = chance.choice(["", "", "", "x"])
        if self._past and chance.random() < 0.25:
            more = [chance.randrange(1, 4) for _ in range(chance.randrange(3))]
            return prompt([*chance.choice(self._past[-8:]), *more], namespace=namespace)
        parts = [[chance.randrange(1, 3)] * chance.choice([0, 0, 5, 17, 33])]
        for _ in range(chance.randrange(3) if self._has_media else 0):
            name = chance.choice("ABCDE")
            parts += [(name, SIZES[name]), [1] * chance.randrange(3)]
        parts.append([chance.randrange(1, 4) for _ in range(chance.randrange(1, 9))])
        return prompt(*parts, namespace=namespace, is_atomic=self._is_atomic, kind=self._kind)

    def params(self, num_prompt: int) -> dict:
        """Sampling parameters and who asks."""
        chance = self._chance
        most = self._room_tokens - num_prompt
        params = {
            "max_new_tokens": min(most, chance.choice(self.lengths)),
            "temperature": chance.choice([0.0, 0.0, 1.0]),
            "min_new_tokens": chance.choice([0, 0, 3]),
            "seed": chance.randrange(100),
            "ignore_eos": chance.random() < 0.5,
            "return_logprobs": chance.random() < 0.3,
        }
        params["min_new_tokens"] = min(params["min_new_tokens"], params["max_new_tokens"])
        if chance.random() < 0.15:
            params["prompt_logprobs_from"] = chance.randrange(num_prompt + 1)
        return params

    def client(self) -> str:
        """Who asks."""
        return self._chance.choice(self._clients)


class Machine:
    """One run of a seed; `counts` tells what happened in it."""

    def __init__(self, seed: int, num_steps: int) -> None:
        self._chance = random.Random(seed)
        self._num_steps = num_steps
        num_slots, self.config = random_config(self._chance)
        names = {name: getattr(self.config, name) for name in self.config.__dataclass_fields__}
        self.driver = Driver(
            num_slots=num_slots, context=CONTEXT, eos=EOS, gives_pixels=False, **names
        )
        page = self.config.page_tokens
        self._room_tokens = min(CONTEXT, num_slots // page * page)
        self._arrivals = _Arrivals(self._chance, self._room_tokens)
        self._rate = self._chance.choice([0.1, 0.5, 1.0, 2.5])
        self._trouble = self._chance.choice([0.0, 1.0, 3.0])
        self._hint_rate = self._chance.choice([0.0, 0.1, 0.6])
        self._specs: dict[int, SequenceSpec] = {}
        self._params: dict[int, dict] = {}
        self._hit: set[int] = set()
        self._awaited: list[bytes] = []
        self._ledger = Ledger()
        self._promises = Promises(self.driver.sched, self.config)
        self._told = self._num_planned = self._num_lost = 0
        self.counts: Counter[str] = Counter()
        self._watch_adds()
        self._sample_verify()
        self._take_time()
        if self._chance.random() < 0.3:
            self._mislead()

    def _take_time(self) -> None:
        """Steps take longer the more they do, and sometimes for no reason."""
        execute, chance = self.driver.runner.execute, self._chance

        def timed(plan):
            sampled = execute(plan)
            forward_ms = (0.3 + 0.02 * plan.num_tokens) * chance.choice([1.0, 1.0, 1.1, 4.0])
            patches = sum(self._num_patches(item.digest) for item in plan.encode)
            self.driver.clock.now_s += forward_ms / 1e3
            return replace(sampled, forward_ms=forward_ms, encode_ms=0.05 * patches)

        self.driver.runner.execute = timed

    def _mislead(self) -> None:
        """Answers are taken to be about to end, so that slots run out again and again."""
        self.driver.sched._ledgers.forecast.remaining = lambda _, most: min(most, 1)
        self._arrivals.lengths = (5, 60, 90)

    def _sample_verify(self) -> None:
        """All ledgers are added up after every change, in large trees after one in four."""
        sched = self.driver.sched
        verify, tree = sched.verify, sched._memory.tree

        def sampled() -> None:
            if tree.num_nodes + tree.num_ghosts < _LARGE or self._chance.random() < 0.25:
                verify()

        sched.verify = sampled

    def _watch_adds(self) -> None:
        add = self.driver.sched.add

        def kept(spec: SequenceSpec) -> None:
            add(spec)
            self._specs[spec.sequence_id] = spec

        self.driver.sched.add = kept

    # One run

    def run(self) -> None:
        """Load for so many steps, then the end of all, then the comparison."""
        while self.counts["steps"] < self._num_steps:
            self._arrive()
            self._hint()
            self._disturb()
            self._give_pixels(0.4)
            if not self._step():
                self._arrive(at_least=1)
                self._give_pixels(1.0)
        self._end()
        self._check_idle()
        self._check_answers()

    def _end(self) -> None:
        """Arrivals stop: everything ends, and something can run at all times."""
        for _ in range(_MAX_STEPS_TO_END):
            if not self.driver.unfinished:
                return
            self._give_pixels(1.0)
            if self.driver.unfinished and not self._step():
                drawing = self.driver.sched.drawing("sched")
                assert self._give_pixels(1.0), f"nothing runs:\n{drawing}"
        raise AssertionError("never ends:\n" + self.driver.sched.drawing("sched"))

    def _step(self) -> bool:
        driver, sched = self.driver, self.driver.sched
        if self._chance.random() < 0.2:
            self._promises.check_order()
        self._promises.before_plan()
        before = dict(sched._fairness.charged())
        plan = driver.plan()
        self._promises.after_plan(plan)
        if plan is None:
            return False
        self.counts["steps"] += 1
        self._num_planned += plan.num_tokens
        check_budgets(plan, self.config, self._specs, self._num_patches)
        live = sched._roster.live
        self._ledger.note(
            plan,
            self._specs,
            {row.sequence_id: live[row.sequence_id].num_retractions for row in plan.rows},
        )
        self._check_charges(before, plan)
        self._check_early(plan)
        self._hint()
        self._disturb()
        self._give_pixels(0.2)
        self._land(plan)
        driver.plans.clear()
        return True

    # What comes from outside

    def _arrive(self, at_least: int = 0) -> None:
        chance = self._chance
        number = max(at_least, int(chance.expovariate(1 / self._rate)))
        if len(self.driver.unfinished) > 60:
            return
        for _ in range(min(number, 12)):
            each = self._arrivals.prompt()
            num_prompt = each.num_tokens
            if num_prompt > self._room_tokens:
                continue
            for _ in range(chance.choice([1, 1, 1, 1, 3])):
                params = self._arrivals.params(num_prompt)
                client, priority = self._arrivals.client(), chance.choice([0, 0, 0, 1])
                priority *= RULES[self.config.policy].by_priority
                number = self.driver.add(each, client=client, priority=priority, **params)
                self._params[number] = params

    def _hint(self) -> None:
        """Say, or not, that pictures will be asked about; some are never."""
        driver, chance = self.driver, self._chance
        if chance.random() >= self._hint_rate:
            return
        names = chance.sample("ABCDEFG", chance.choice([1, 1, 2]))
        sizes = {picture(name): SIZES[name] for name in names}
        driver.sched.anticipate(sizes, self._arrivals.client())
        driver.clock.now_s += chance.choice([0.0, 0.0, 0.0, 61.0])
        driver.sched.verify()
        self.counts["hints"] += 1

    def _disturb(self) -> None:
        """Abort, end from outside, flush, now and then."""
        driver, chance = self.driver, self._chance
        kind = chance.random() / self._trouble if self._trouble else 1.0
        if kind < 0.02 and driver.unfinished:
            number = chance.choice(driver.unfinished)
            self._hit.add(number)
            driver.take([driver.sched.abort(number)])
            self.counts["aborts"] += 1
        elif kind < 0.025 and driver.unfinished:
            number = chance.choice(driver.unfinished)
            self._hit.add(number)
            driver.take([driver.sched.finish(number, Finish("stop", matched="x"))])
            self.counts["stops"] += 1
        elif kind < 0.03:
            self.counts["flushes"] += driver.sched.flush()
        if kind < 0.03:
            driver.sched.verify()

    def _give_pixels(self, share: float) -> bool:
        """Provide, or rarely refuse, some of the pictures asked for; whether any was."""
        driver, chance = self.driver, self._chance
        self._awaited += driver.sched.wanted()
        left = []
        for digest in self._awaited:
            if chance.random() >= share:
                left.append(digest)
            elif chance.random() < 0.03 * self._trouble:
                error = MediaRefused("not a picture", reason="undecodable")
                updates = driver.sched.refuse(digest, error)
                self._hit.update(update.sequence_id for update in updates)
                driver.take(updates)
                self.counts["refused pictures"] += 1
            else:
                driver.sched.provide(
                    digest,
                    {"pixels": digest},
                    num_patches=self._num_patches(digest),
                    decode_ms=chance.choice([0.0, 3.0]),
                )
        is_given = len(left) < len(self._awaited)
        self._awaited = left
        if is_given:
            driver.sched.verify()
        return is_given

    def _land(self, plan) -> None:
        """Run a step, or let it fail in a row or as a whole."""
        driver, chance = self.driver, self._chance
        kind = chance.random() / self._trouble if self._trouble else 1.0
        cached = self._cached_elsewhere(plan)
        if kind < 0.01:
            driver.runner.fail_next(RunnerFailed("lost", step=plan.step))
            self._num_lost += plan.num_tokens
            self._hit.update(row.sequence_id for row in plan.rows)
            self.counts["failed steps"] += 1
        elif kind < 0.03:
            rows = chance.sample(plan.rows, min(len(plan.rows), chance.randrange(1, 4)))
            driver.runner.row_errors = {row.sequence_id: ValueError("nan") for row in rows}
            self._num_lost += sum(len(row.token_ids) for row in rows)
            self._hit.update(row.sequence_id for row in rows)
            self.counts["failed rows"] += len(rows)
        driver.land(plan)
        driver.runner.row_errors = {}
        for row in plan.rows:
            self._remember(row.sequence_id)
        tree = driver.sched._memory.tree
        for namespace, keys, num_tokens in cached:
            found = tree.match(namespace, keys, num_tokens).num_tokens
            assert found >= num_tokens, "a failed step forgot what was cached before"

    def _cached_elsewhere(self, plan):
        """Whole pages each row had from the tree before its step, for those alone in it."""
        live = self.driver.sched._roster.live
        page = self.config.page_tokens
        written = [set(row.slots[row.start :].tolist()) for row in plan.rows]
        cached = []
        for row in plan.rows:
            seq = live.get(row.sequence_id)
            if seq is None or not self.config.radix_cache:
                continue
            start = min(seq.depth, row.start) // page * page
            read = set(row.slots[:start].tolist())
            if not any(read & slots for slots in written):
                keys = seq.keys.view(0, start).copy()
                cached.append((seq.spec.prompt.namespace, keys, start))
        return cached

    def _remember(self, number: int) -> None:
        answer = self.driver.answers[number]
        spec = self._specs[number]
        if answer.finish is None or number in self._hit:
            return
        self.counts["ended"] += 1
        if not spec.prompt.spans and spec.sampling.max_new_tokens:
            self._arrivals.remember([*spec.prompt.token_ids.tolist(), *answer.tokens])

    @staticmethod
    def _num_patches(digest: bytes) -> int:
        return 2 * SIZES[digest[:1].decode()]

    # What is promised

    def _check_charges(self, before, plan) -> None:
        """A step charges for each token, answer and patch once, whoever pays."""
        config, driver = self.config, self.driver
        told = sum(self._ledger.misses.values())
        want = float(told - self._told)
        self._told = told
        live = driver.sched._roster.live
        for row in plan.rows:
            seq = live[row.sequence_id]
            if row.start + len(row.token_ids) == seq.known and seq.max_new:
                want += config.decode_cost
        want += config.patch_cost * sum(self._num_patches(i.digest) for i in plan.encode)
        got = charges(before, driver.sched._fairness.charged())
        assert abs(got - want) < _CLOSE * max(1.0, want), f"charged {got}, not {want}"

    def _check_early(self, plan) -> None:
        """Who is not there gets one picture a step, and only what rows have left."""
        needed = self.driver.sched._desk._needers
        early = [item for item in plan.encode if item.digest not in needed]
        assert len(early) <= 1
        assert plan.rows or len(early) == len(plan.encode) == 1
        if early:
            assert len(plan.encode) == 1
            self.counts["early pictures"] += 1
            self.counts["steps without rows"] += not plan.rows

    def _check_idle(self) -> None:
        driver, counts = self.driver, self.driver.sched.counts()
        assert (counts.running, counts.waiting, counts.slots_held) == (0, 0, 0)
        assert counts.slots_free + counts.slots_cached == counts.slots_total
        assert sum(counts.finished.values()) == len(driver.answers)
        assert counts.tokens_computed == self._num_planned - self._num_lost
        assert counts.early_items_used <= self.counts["early pictures"]
        assert counts.early_items <= self.counts["early pictures"]
        self.counts["early used"] += counts.early_items_used
        self._check_totals(counts)
        tree = driver.sched._memory.tree
        assert not driver.sched._line._queues.order._crowds
        assert not driver.sched._line._queues.order._claims
        assert all(not node.guests and not node.users for node in tree.nodes())
        self.counts["sequences"] += len(driver.answers)
        self.counts["retractions"] += counts.retractions
        assert driver.sched.flush()
        driver.sched.verify()
        assert not list(driver.sched._desk.hints)
        assert counts.feature_tokens >= driver.sched.counts().feature_tokens == 0
        assert driver.sched.counts().slots_free == counts.slots_total
        assert tree._history.num_tokens <= tree._history.limit_tokens
        self.counts["evicted tokens"] += tree.num_evicted_tokens

    def _check_totals(self, counts) -> None:
        """Sums over all are the sums of what each was told."""
        usages = [answer.last.usage for answer in self.driver.answers.values()]
        assert counts.cached_tokens == sum(usage.cached_tokens for usage in usages)
        assert counts.retractions == sum(usage.num_retractions for usage in usages)
        told: Counter[tuple[str, str]] = Counter()
        for usage in usages:
            told.update({(use.kind, use.outcome): use.num_tokens for use in usage.cache})
        assert dict(self.driver.sched.report().prompt_tokens) == dict(told)

    def _check_answers(self) -> None:
        """Who was not hit answers as alone; who was, as far as it came."""
        for number, answer in self.driver.answers.items():
            spec, params = self._specs[number], self._params[number]
            self._ledger.check(number, answer.last.usage)
            want = _alone(_frozen(spec.prompt), tuple(params.items()))
            num_tokens = len(answer.tokens)
            if number in self._hit:
                assert answer.tokens == want.tokens[:num_tokens]
                continue
            assert (answer.tokens, answer.logprobs) == (want.tokens, want.logprobs)
            assert (answer.finish, answer.scores) == (want.finish, want.scores)
            assert self._ledger.known[number] == spec.prompt.num_tokens


@lru_cache(maxsize=20_000)
def _alone(frozen, params):
    parts = [part if isinstance(part[0], str) else list(part) for part in frozen if part]
    return alone(prompt(*parts), eos=EOS, **dict(params))


def _frozen(each):
    """A prompt as something that can be a key of a dictionary."""
    parts, position = [], 0
    for span in each.spans:
        parts.append(tuple(each.token_ids[position : span.start].tolist()))
        parts.append((span.digest.decode().rstrip("."), span.num_tokens))
        position = span.end
    parts.append(tuple(each.token_ids[position:].tolist()))
    return tuple(parts)
