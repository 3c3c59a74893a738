"""Those who wait hang in the tree; who starts next follows every change of it."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.sched.driver import VOCAB, prompt

from mmserve.core import LedgerBroken, SamplingParams, SchedConfig
from mmserve.radix import Interner
from mmserve.sched import SequenceSpec
from mmserve.sched.admission import make_sequence
from mmserve.sched.memory import KvMemory
from mmserve.sched.order.fairness import Fairness
from mmserve.sched.order.line import WaitingLine
from mmserve.sched.order.rules import RULES


class Line:
    """A waiting line over a tree whose KV the test gives and takes."""

    def __init__(self, num_slots=400, **config):
        self.config = SchedConfig(**config)
        self.memory = KvMemory(num_slots, self.config)
        self.fairness = Fairness(self.config)
        self.line = WaitingLine(self.config, self.memory, self.fairness)
        self.interner = Interner()
        self.numbers = itertools.count()
        self.waiting = {}

    def add(self, *parts, client="", priority=0, namespace=""):
        """One more waits; its number."""
        number = next(self.numbers)
        spec = SequenceSpec(
            sequence_id=number,
            prompt=prompt(*parts, namespace=namespace),
            sampling=SamplingParams(max_new_tokens=1),
            seed=0,
            eos_token_ids=(),
            client=client,
            priority=priority,
        )
        self.waiting[number] = make_sequence(
            spec,
            arrival=number,
            now_s=0.0,
            room_tokens=400,
            vocab_size=VOCAB,
            interner=self.interner,
        )
        self.line.add(self.waiting[number])
        return number

    def next(self):
        """Number of the next, or None."""
        sequence = self.line.next()
        return None if sequence is None else sequence.sequence_id

    def start(self):
        """Let the next one start, and take it down at once; its number."""
        number = self.next()
        sequence = self.waiting.pop(number)
        self.line.admit(sequence)
        self.line.take_down(sequence)
        self.verify()
        return number

    def remove(self, number):
        """One goes."""
        self.line.remove(self.waiting.pop(number))
        self.verify()

    def cache(self, token_ids, namespace=""):
        """Give these tokens KV, as if somebody had computed them."""
        tree, keys = self.memory.tree, np.array(list(token_ids), dtype=np.int64)
        root = tree.pin(tree.match(namespace, keys, 0))
        have = tree.follow_exactly(root, keys).num_tokens
        if have < len(keys) and len(keys) - have <= self.memory.pool.num_free:
            slots = np.zeros(len(keys), dtype=np.int64)
            slots[have:] = self.memory.pool.allocate(len(keys) - have)
            tree.insert(root, keys, slots)
        tree.unpin(root)
        self.verify()

    def evict(self, num_tokens):
        """Take KV away."""
        self.memory.pool.give_back(self.memory.tree.evict(num_tokens))
        self.verify()

    def verify(self):
        """Tree and order agree."""
        self.memory.tree.verify([])
        self.line.verify()


def test_an_empty_line_names_nobody():
    """Nobody waits, nobody is next."""
    assert Line().next() is None


def test_looking_takes_nobody_out():
    """`next` names the same one until it starts or goes."""
    line = Line()
    first = line.add([1, 2])
    assert [line.next(), line.next()] == [first, first]
    line.remove(first)
    assert line.next() is None


def test_who_has_most_cached_is_next():
    """The order follows what gets KV and what loses it."""
    line = Line()
    left, right = line.add([1] * 9), line.add([2] * 9)
    assert line.next() == left
    line.cache([2] * 5)
    assert line.next() == right
    line.cache([1] * 7)
    assert line.next() == left
    line.evict(10**6)
    assert line.next() == left
    line.remove(left)
    assert line.next() == right


def test_one_place_stands_for_all_who_hang_below():
    """When a common beginning gets KV, all below are served before others, by arrival."""
    line = Line()
    other = line.add([9] * 3)
    below = [line.add([1] * 20, [2] * n, [3 + n]) for n in range(5)]
    line.cache([1] * 20)
    assert [line.start() for _ in range(6)] == [*below, other]


def test_who_begins_the_prompts_of_others_goes_first():
    """Of those that share tokens without KV, the ones whose prompts end where others go on."""
    line = Line()
    long = line.add([1] * 10, [2] * 5)
    longer = line.add([1] * 10, [2] * 9)
    short = line.add([1] * 10, [3])
    assert [line.start() for _ in range(3)] == [short, long, longer]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_policies_by_arrival_do_not_ask_who_begins_whom(policy):
    """First come, first served, also where one prompt begins another."""
    line = Line(policy=policy)
    ids = [line.add([1] * n) for n in (20, 11, 15)]
    assert [line.start() for _ in ids] == ids


def test_what_a_running_sequence_computes_is_not_offered():
    """Those with the same missing tokens wait for them; when they are there, they go first."""
    line = Line()
    first = line.add([1] * 20, [2])
    same = line.add([1] * 20, [3])
    other = line.add([9] * 5)
    running = line.waiting.pop(first)
    line.line.admit(running)
    line.line.keep_claim(running)
    line.verify()
    assert line.next() == other
    line.cache([1] * 20)
    assert line.next() == same
    line.line.take_down(running)
    line.verify()


def test_a_claim_ends_with_the_one_who_made_it():
    """If it is aborted, others may compute these tokens."""
    line = Line()
    first = line.add([1] * 20, [2])
    same = line.add([1] * 20, [3])
    running = line.waiting.pop(first)
    line.line.admit(running)
    line.line.keep_claim(running)
    assert line.next() is None
    line.line.take_down(running)
    assert line.next() == same
    line.verify()


def test_set_aside_means_for_this_step():
    """One that found no room is passed over until `restore`."""
    line = Line()
    first, second = line.add([1]), line.add([2])
    line.line.set_aside(line.waiting[first])
    assert line.next() == second
    line.line.restore()
    assert line.next() == first


def test_parked_means_until_its_pixels_come():
    """One without pixels is passed over for longer, and can go meanwhile."""
    line = Line()
    first, second = line.add([1]), line.add([2])
    line.line.park(line.waiting[first])
    line.line.restore()
    assert line.next() == second
    line.line.unpark(line.waiting[first])
    assert line.next() == first
    line.line.park(line.waiting[first])
    line.remove(first)
    assert line.next() == second


@pytest.mark.parametrize(
    ("few", "num_began", "num_joining"),
    [(0, 5, 0), (2, 2, 2), (2, 5, 6), (8, 5, 8), (8, 16, 64)],
)
def test_a_sweep_takes_so_many_newcomers(few, num_began, num_joining):
    """Warm newcomers go before a cold one as long as the sweep has room, and then no more."""
    line = Line(num_slots=4000, max_sweep_joiners=few)
    line.cache([1] * 10)
    cold = line.add([9] * 5)
    for n in range(num_began - 1):
        line.add([1] * 10, [2 + n])
    line.start()
    num_more = 0
    while cold in line.waiting:
        line.add([1] * 10, [100 - num_more % 70, 1 + num_more // 70])
        num_more += 1
        line.start()
    started_before = num_began - 1 + num_joining
    assert num_more == started_before


def test_a_new_sweep_begins_with_all_who_wait():
    """Those too late for one sweep are the next; there the best place counts again."""
    line = Line(max_sweep_joiners=1)
    line.cache([1] * 10)
    cold = [line.add([9] * 5), line.add([8] * 5)]
    assert line.start() == cold[0]
    joins = line.add([7] * 5)
    too_late = [line.add([6] * 5), line.add([1] * 10, [2]), line.add([1] * 10, [3])]
    assert [line.start() for _ in range(2)] == [cold[1], joins]
    assert [line.start() for _ in range(3)] == [too_late[1], too_late[2], too_late[0]]


def test_a_retracted_sequence_goes_before_its_clients_newcomers():
    """It begins before every sweep, wherever it hangs."""
    line = Line()
    line.cache([1] * 10)
    first = line.add([9] * 5)
    running = line.waiting.pop(first)
    line.line.admit(running)
    line.add([1] * 10, [2])
    line.line.put_back(running)
    line.waiting[first] = running
    line.verify()
    assert line.next() == first


def test_clients_take_queues_by_what_they_were_served():
    """Who has used up a round's quantum rests until the others have."""
    line = Line(quantum_tokens=10)
    line.cache([1] * 10)
    warm = [line.add([1] * 10, [n], client="a") for n in (2, 3, 4)]
    cold = line.add([9] * 5, client="b")
    assert line.start() == warm[0]
    line.fairness.charge("a", 10)
    assert line.next() == cold
    line.fairness.charge("b", 10)
    assert line.next() == warm[1]


def test_keys_of_clients_at_the_front_are_compared():
    """Among those with credit the best place goes first, whoever's it is."""
    line = Line(quantum_tokens=100)
    cold = line.add([9] * 5, client="a")
    warm = line.add([1] * 10, [2], client="b")
    line.cache([1] * 10)
    assert [line.start(), line.start()] == [warm, cold]


def test_a_client_moves_up_when_what_kept_it_back_goes():
    """Its best place may look better beside others' once one of higher priority is away."""
    line = Line(quantum_tokens=100)
    line.cache([1] * 20)
    line.cache([2] * 10)
    urgent = line.add([9] * 5, client="a", priority=1)
    warm = line.add([1] * 20, [3], client="a")
    other = line.add([2] * 10, [3], client="b")
    assert line.next() == other
    line.line.park(line.waiting[urgent])
    assert line.next() == warm
    line.line.unpark(line.waiting[urgent])
    assert line.next() == other


def test_the_heaps_do_not_grow_with_time():
    """Offering and withdrawing again and again costs no memory."""
    line = Line()
    line.cache([1] * 10)
    numbers = [line.add([1] * 10, [n], client="ab"[n % 2]) for n in range(4)]
    for _ in range(2000):
        for number in numbers:
            line.line.park(line.waiting[number])
            line.next()
            line.line.unpark(line.waiting[number])
    queues = line.line._queues
    sizes = [len(queue.places) for queue in queues._queues.values()]
    sizes += [len(lane.front) + len(lane.resting) for lane in queues._lanes.values()]
    for crowds in queues.order._crowds.values():
        sizes += [len(crowd.own) + len(crowd.below) for crowd in crowds.values()]
    assert max(sizes) <= 2 * (64 + 4 * 4)


def test_nothing_is_kept_of_those_who_left():
    """With the last one all crowds, queues and places are gone."""
    line = Line()
    numbers = [line.add([n % 3] * 5, [n], client=str(n)) for n in range(20)]
    line.next()
    for number in numbers:
        line.remove(number)
    assert line.next() is None
    assert not line.line._queues._queues
    assert not line.line._queues.order._crowds
    assert not line.memory.tree.num_ghosts


def test_verify_sees_a_sequence_that_was_lost():
    """An order that does not offer what may start is found."""
    line = Line()
    number = line.add([1, 2])
    line.line._queues.order._crowds.clear()
    with pytest.raises(LedgerBroken):
        line.line.verify()
    assert number in line.waiting


MOVES = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "add",
                "add",
                "add",
                "start",
                "remove",
                "cache",
                "evict",
                "park",
                "unpark",
                "charge",
            ]
        ),
        st.lists(st.integers(1, 3), min_size=1, max_size=6),
        st.integers(0, 99),
    ),
    min_size=5,
    max_size=60,
)


class Player(Line):
    """Makes moves, each with some tokens and a number that choose what happens."""

    def __init__(self, **config):
        super().__init__(60, quantum_tokens=5, **config)
        self.rule = RULES[self.config.policy]
        self.parked = set()

    def chosen(self, number):
        """One who waits, or None."""
        known = sorted(self.waiting)
        return known[number % len(known)] if known else None

    def play(self, name, token_ids, number):
        """One move; the books are right afterwards."""
        getattr(self, f"move_{name}")(token_ids, number)
        self.verify()

    def move_add(self, token_ids, number):
        """Somebody comes."""
        priority = number % 2 if self.rule.by_priority else 0
        self.add(token_ids, client="abc"[number % 3], priority=priority)

    def move_cache(self, token_ids, number):
        """Whole pages get KV."""
        self.cache(
            token_ids[: len(token_ids) // self.config.page_tokens * self.config.page_tokens]
        )

    def move_evict(self, token_ids, number):
        """KV goes."""
        self.evict(1 + number % 9)

    def move_charge(self, token_ids, number):
        """A client is served."""
        self.fairness.charge("abc"[number % 3], number % 7)

    def move_start(self, token_ids, number):
        """The next starts."""
        if self.next() is not None:
            self.start()

    def move_remove(self, token_ids, number):
        """Somebody goes."""
        chosen = self.chosen(number)
        if chosen is not None:
            self.remove(chosen)
            self.parked.discard(chosen)

    def move_park(self, token_ids, number):
        """Somebody has no pixels."""
        chosen = self.chosen(number)
        if chosen is not None and chosen not in self.parked:
            self.line.park(self.waiting[chosen])
            self.parked.add(chosen)

    def move_unpark(self, token_ids, number):
        """Somebody's pixels come."""
        if self.chosen(number) in self.parked:
            self.line.unpark(self.waiting[self.chosen(number)])
            self.parked.discard(self.chosen(number))


@settings(max_examples=120, deadline=None)
@given(
    st.sampled_from(sorted(RULES)),
    st.sampled_from([1, 1, 2, 3]),
    st.booleans(),
    MOVES,
)
def test_the_next_is_the_best_of_all(policy, page_tokens, fairness, moves):
    """Whatever comes, goes, gets KV or loses it, `next` is what looking at everybody gives."""
    line = Player(policy=policy, page_tokens=page_tokens, fairness=fairness)
    for move in moves:
        line.play(*move)
        free = [seq for number, seq in line.waiting.items() if number not in line.parked]
        best, got = _best(line, line.rule, free), line.line.next()
        if best is None:
            assert got is None
        elif line.rule.by_sweep:
            assert line.rule.key(got.order_rank, _place(got))[:3] == best[0][:3]
            assert _place(got) is _place(best[1])
        else:
            assert got is best[1]


def _best(line, rule, free):
    """(key, sequence) of the one that goes first: the best of the first ones of queues."""
    fairness, quantum = line.fairness, line.config.quantum_tokens
    if not free:
        return None
    levels = {seq.spec.client: fairness.level(seq.spec.client) for seq in free}
    limit = max(fairness._round(0), min(levels.values()) // quantum + 1) * quantum
    line.line.next()
    firsts = {}
    for seq in sorted(free, key=lambda seq: rule.key(seq.order_rank, _place(seq))):
        queue = fairness.queue_of(seq.spec.client)
        if not fairness.is_on or levels[queue] < limit:
            firsts.setdefault(queue, (rule.key(seq.order_rank, _place(seq)), seq))
    queue = min(firsts, key=lambda queue: (fairness.phase(queue), *firsts[queue][0][2:]))
    return firsts[queue]


def _place(sequence):
    """The node with KV from which it would start."""
    node = sequence.hook
    while node.is_ghost:
        node = node.parent
    return node
