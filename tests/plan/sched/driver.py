"""Drives a scheduler with a FakeRunner, keeps what came of each sequence, checks every step."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np

from mmserve.core import (
    Broken,
    Finish,
    ForwardPlan,
    Jump,
    MediaSpan,
    Prompt,
    RunnerFailed,
    SamplingParams,
    SchedConfig,
)
from mmserve.sched import Scheduler, SequenceSpec, SequenceUpdate
from mmserve.testing.fake_runner import FakeRunner

VOCAB = 128
MEDIA_ID = VOCAB - 1
EOS = 0


def picture(name: str) -> bytes:
    """A 16-byte digest."""
    return name.encode().ljust(16, b".")


def prompt(*parts, namespace="", is_atomic=False, kind="image") -> Prompt:
    """A prompt of token ids (lists or ranges) and pictures ((name, tokens) pairs)."""
    token_ids: list[int] = []
    spans = []
    for part in parts:
        if isinstance(part, tuple):
            name, num_tokens = part
            start = len(token_ids)
            spans.append(MediaSpan(picture(name), start, num_tokens, kind, is_atomic))
            token_ids += [MEDIA_ID] * num_tokens
        else:
            token_ids += list(part)
    return Prompt(np.array(token_ids, dtype=np.int64), tuple(spans), namespace)


@dataclass
class Answer:
    """All that came of one sequence."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    scores: list[tuple] = field(default_factory=list)
    rivals: list[tuple] = field(default_factory=list)
    finish: Finish | None = None
    last: SequenceUpdate | None = None
    num_settled: int = 0

    def grow(self, update: SequenceUpdate) -> None:
        """Take in what an update adds, in order; what a jump settled is never replaced."""
        self._append(update.opening, 0)
        for position, logprob, _ in update.forced_logprobs:
            self.logprobs[position] = logprob
        if update.token_id is not None:
            self.tokens.append(update.token_id)
            self.logprobs.append(update.logprob)
        if update.jump is not None:
            self._append(update.jump.token_ids, update.jump.num_replaced)

    def _append(self, token_ids, num_replaced) -> None:
        first = len(self.tokens) - num_replaced
        assert first >= self.num_settled
        self.tokens[first:] = token_ids
        self.logprobs[first:] = [None] * len(token_ids)
        if token_ids:
            self.num_settled = len(self.tokens)


class HandClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now_s


class Driver:
    """One scheduler and its runner; `step` verifies all ledgers after plan and after commit."""

    def __init__(
        self, *, num_slots=512, context=400, eos=None, rule=None, gives_pixels=True, **config
    ):
        self.clock = HandClock()
        self.sched = Scheduler(
            SchedConfig(**config),
            num_slots=num_slots,
            context_length=context,
            vocab_size=VOCAB,
            clock=self.clock,
        )
        self.runner = FakeRunner(num_slots, VOCAB, eos=eos, rule=rule)
        self.answers: dict[int, Answer] = {}
        self.plans: list[ForwardPlan] = []
        self.started: list[int] = []
        self.wanted: list[bytes] = []
        self.gives_pixels = gives_pixels
        self._ids = itertools.count()

    def add(
        self, prompt, *, matcher=None, priority=0, seed=0, client="", rivals=(), **params
    ) -> int:
        """Add a sequence, greedy unless told otherwise; its id."""
        sequence_id = next(self._ids)
        spec = SequenceSpec(
            sequence_id=sequence_id,
            prompt=prompt,
            sampling=SamplingParams(**{"temperature": 0.0, "max_new_tokens": 4, **params}),
            seed=seed,
            eos_token_ids=(EOS,),
            client=client,
            priority=priority,
            matcher=matcher,
            rivals=rivals,
        )
        self.sched.add(spec)
        self.answers[sequence_id] = Answer()
        return sequence_id

    def take(self, updates) -> None:
        """Keep news; nothing may come after an end."""
        for update in updates:
            answer = self.answers[update.sequence_id]
            assert answer.finish is None
            answer.grow(update)
            answer.scores.extend(update.prompt_logprobs)
            answer.rivals.extend(update.rival_logprobs)
            answer.finish, answer.last = update.finish, update

    def provide(self) -> bool:
        """Give pixels to all who want them; whether anybody did."""
        wanted = self.sched.wanted()
        for digest in wanted:
            self.sched.provide(digest, {"pixels": np.zeros(1)}, num_patches=4)
        self.wanted += wanted
        return bool(wanted)

    def plan(self) -> ForwardPlan | None:
        """Plan a step and note who starts."""
        if self.gives_pixels:
            self.provide()
        plan = self.sched.plan()
        if plan is None and self.gives_pixels and self.provide():
            plan = self.sched.plan()
        self.sched.verify()
        if plan is not None:
            self.plans.append(plan)
            known = set(self.started)
            self.started += [
                row.sequence_id for row in plan.rows if row.sequence_id not in known
            ]
        return plan

    def land(self, plan: ForwardPlan) -> None:
        """Run a planned step and take its result in."""
        try:
            sampled = self.runner.execute(plan)
        except RunnerFailed as error:
            self.take(self.sched.rollback(plan, error))
        else:
            self.take(self.sched.commit(sampled))
        self.sched.verify()

    def step(self) -> bool:
        """One step; False if nothing could run."""
        plan = self.plan()
        if plan is None:
            return False
        self.land(plan)
        return True

    @property
    def unfinished(self) -> list[int]:
        """Ids of sequences that have not ended."""
        return [number for number, answer in self.answers.items() if answer.finish is None]

    def run(self, max_steps=20_000) -> None:
        """Steps until all have ended."""
        for _ in range(max_steps):
            if not self.unfinished:
                return
            assert self.step(), "nothing runs:\n" + self.sched.drawing("sched")
        raise AssertionError("never ends:\n" + self.sched.drawing("sched"))

    def tokens(self) -> list[list[int]]:
        """Answers of all sequences, in the order of adding."""
        return [answer.tokens for answer in self.answers.values()]


class ListMatcher:
    """A grammar that allows, at each position, one list of tokens, then the end token."""

    def __init__(self, *choices) -> None:
        self.choices = [tuple(choice) for choice in choices]
        self.accepted: list[int] = []

    def allowed(self):
        """The mask of this position."""
        mask = np.zeros(VOCAB // 32, dtype=np.uint32)
        position = len(self.accepted)
        for token_id in self.choices[position] if position < len(self.choices) else (EOS,):
            mask[token_id // 32] |= np.uint32(1 << token_id % 32)
        return mask

    def accept(self, token_id: int) -> None:
        """One token on."""
        if token_id not in self.choices[len(self.accepted)]:
            raise Broken(f"token {token_id} is not allowed")
        self.accepted.append(token_id)

    def rollback(self, num_tokens: int) -> None:
        """Some tokens back."""
        del self.accepted[len(self.accepted) - num_tokens :]

    def jump(self, num_settled=0, most=None):
        """Tokens of the positions from here on that allow only one."""
        position = len(self.accepted)
        ahead = itertools.takewhile(lambda choice: len(choice) == 1, self.choices[position:])
        forced = tuple(choice[0] for choice in ahead)
        kept = forced[:most]
        is_end = len(kept) == len(forced) and position + len(forced) == len(self.choices)
        return Jump(0, kept, is_end) if kept else None

    def fork(self):
        """A copy."""
        other = ListMatcher(*self.choices)
        other.accepted = list(self.accepted)
        return other

    @property
    def is_finished(self) -> bool:
        """Whether all positions are filled."""
        return len(self.accepted) == len(self.choices)


def alone(prompt, *, eos=None, **params) -> Answer:
    """The answer of one sequence that runs by itself, without a cache, in one piece."""
    driver = Driver(num_slots=1024, context=1024, eos=eos, radix_cache=False)
    sequence_id = driver.add(prompt, **params)
    while driver.unfinished:
        driver.provide()
        driver.take(driver.sched.commit(driver.runner.execute(driver.sched.plan())))
    return driver.answers[sequence_id]
