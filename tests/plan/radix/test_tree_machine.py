"""The tree against a dictionary of prefixes, whatever is done to it in whatever order."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from plan.radix.tree_model import Pages, TreeModel

from mmserve.core import Eviction
from mmserve.radix import RadixTree, media_parts, worth_of

NUM_PAGES = 24
NAMES = st.sampled_from(["", "", "", "x", "y"])
CLIENTS = st.sampled_from(["a", "b"])
SYMBOLS = st.lists(st.integers(0, 6), min_size=1, max_size=7).map(tuple)
NUMBERS = st.integers(0, 1000)
PICTURES = {4: 3, 5: 7, 6: 11}
"""Tokens of a picture, in quarters of a page, and at least so many."""


class TreeMachine(RuleBasedStateMachine):
    """One tree, its model, and pins and guests by the handle the tree gave for them."""

    @initialize(
        page_tokens=st.one_of(st.integers(1, 64), st.sampled_from([1, 2, 16])),
        eviction=st.sampled_from(Eviction.__args__),
        history=st.sampled_from([None, None, 0, 8]),
    )
    def begin(self, page_tokens, eviction, history):
        """An empty tree."""
        self.page = page_tokens
        self.num_slots = NUM_PAGES * page_tokens
        self.limit = 10**9 if history is None else history * page_tokens
        self.tree = RadixTree(page_tokens, worth_of(eviction, self.num_slots), self.limit)
        self.model = TreeModel(page_tokens)
        self.pool = Pages(NUM_PAGES, page_tokens)
        self.pins = []
        self.hooks = []

    # Keys

    def keys(self, symbols):
        """Runs of text and pictures, of lengths that are no multiples of a page."""
        runs = []
        for symbol in symbols:
            if symbol in PICTURES:
                num_tokens = PICTURES[symbol] * max(1, self.page // 4)
                first = 1 + (symbol << 20)
                runs.append(-np.arange(first, first + num_tokens))
            else:
                runs.append(np.full(max(1, self.page // 2 + 1), symbol))
        return np.concatenate(runs).astype(np.int64)

    def spans(self, keys):
        """[start, end) of the pictures in keys."""
        items, offsets = media_parts(keys)
        starts = np.flatnonzero((items >= 0) & (offsets == 0)).tolist()
        sizes = [PICTURES[int(items[s])] * max(1, self.page // 4) for s in starts]
        return tuple((s, s + n) for s, n in zip(starts, sizes, strict=True))

    def room_for(self, num_pages):
        """Whether so many pages are free, if need be after an eviction."""
        lack = (num_pages - len(self.pool.free)) * self.page
        if lack > self.tree.num_evictable:
            return False
        if lack > 0:
            self.evict(lack)
        return True

    # Questions and pins

    @rule(name=NAMES, symbols=SYMBOLS, cut=NUMBERS, is_atomic=st.booleans())
    def match_and_pin(self, name, symbols, cut, is_atomic):
        """A match is the model's, and pinning takes from the evictable what was foretold."""
        keys = self.keys(symbols)
        limit = len(keys) - cut % (len(keys) + 1) // 3
        atomic = self.spans(keys) if is_atomic else ()
        match = self.tree.match(name, keys, limit, atomic)
        plain = tuple(keys.tolist())
        num_tokens = self.model.num_matched(name, plain, limit, atomic)
        assert match.num_tokens == num_tokens
        assert match.slots.tolist() == self.model.slots_of(name, plain[:num_tokens])
        want = self.tree.num_evictable - self.tree.num_evictable_in(match)
        node = self.tree.pin(match)
        assert (self.tree.num_evictable, node.depth) == (want, num_tokens)
        self.note_pin(node, name, plain[:num_tokens])

    def note_pin(self, node, name, prefix):
        """Keep a pin."""
        self.pins.append((node, name, prefix))
        self.model.pins[name, prefix] += 1

    @precondition(lambda self: self.pins)
    @rule(number=NUMBERS)
    def unpin(self, number):
        """Take a pin back."""
        node, name, prefix = self.pins.pop(number % len(self.pins))
        self.tree.unpin(node)
        self.model.pins[name, prefix] -= 1

    @precondition(lambda self: self.pins)
    @rule(number=NUMBERS)
    def hold(self, number):
        """Pin once more what is pinned."""
        node, name, prefix = self.pins[number % len(self.pins)]
        self.tree.hold(node)
        self.note_pin(node, name, prefix)

    @precondition(lambda self: self.pins)
    @rule(number=NUMBERS)
    def tidy(self, number):
        """Joining runs changes no match and no pin."""
        self.tree.tidy(self.pins[number % len(self.pins)][0])

    @precondition(lambda self: self.pins)
    @rule(number=NUMBERS, depth=NUMBERS)
    def ancestor(self, number, depth):
        """The node on the way that ends at a depth."""
        node, name, prefix = self.pins[number % len(self.pins)]
        pages = len(prefix) // self.page
        if pages:
            above = self.tree.ancestor(node, (1 + depth % pages) * self.page)
            assert above.depth == (1 + depth % pages) * self.page
            self.tree.hold(above)
            self.note_pin(above, name, prefix[: above.depth])

    # Growth

    @precondition(lambda self: self.pins)
    @rule(number=NUMBERS, symbols=SYMBOLS, is_held=st.booleans())
    def fill(self, number, symbols, is_held):
        """Tokens below a pin go in where none of them is cached."""
        node, name, prefix = self.pins[number % len(self.pins)]
        keys = (*prefix, *self.keys(symbols).tolist())
        keys = keys[: len(keys) - len(keys) % self.page]
        num_pages = (len(keys) - len(prefix)) // self.page
        if not num_pages or self.model.num_cached(name, keys) > len(prefix):
            return
        if not self.room_for(num_pages):
            return
        slots = self.pool.take(num_pages)
        nodes = self.tree.fill(node, np.array(keys[len(prefix) :]), np.array(slots))
        self.model.fill(name, keys, len(prefix), slots)
        assert [part.parent for part in nodes] == [node, *nodes[:-1]]
        assert nodes[-1].depth == len(keys)
        if is_held:
            self.tree.hold(nodes[-1])
            self.note_pin(nodes[-1], name, keys)

    @precondition(lambda self: self.pins)
    @rule(number=NUMBERS, symbols=SYMBOLS)
    def insert(self, number, symbols):
        """What the tree has already keeps its slots; the others are duplicates."""
        node, name, prefix = self.pins[number % len(self.pins)]
        keys = (*prefix, *self.keys(symbols).tolist())
        keys = keys[: len(keys) - len(keys) % self.page]
        num_pages = (len(keys) - len(prefix)) // self.page
        if not self.room_for(num_pages):
            return
        slots = self.pool.take(num_pages)
        num_cached = self.model.num_cached(name, keys)
        num_existing = num_cached - len(prefix)
        own = self.model.slots_of(name, keys[:num_cached])[len(prefix) :]
        put = self.tree.insert(
            node, np.array(keys[len(prefix) :], dtype=np.int64), np.array(slots)
        )
        assert (put.num_existing, put.slots.tolist()) == (num_existing, own)
        self.pool.give_back(slots[:num_existing])
        self.model.fill(name, keys, num_cached, slots[num_existing:])
        end = self.tree.pin(put.end)
        assert end.depth == len(keys)
        self.note_pin(end, name, keys)

    # Eviction

    @rule(amount=st.integers(1, NUM_PAGES))
    def evict_some(self, amount):
        """Make room."""
        self.evict(amount * self.page)

    def evict(self, num_tokens):
        """Enough goes, little more; no picture is cut; wanted leaves go last."""
        num_evictable = self.tree.num_evictable
        starts = self.node_starts()
        freed = self.tree.evict(num_tokens).tolist()
        assert len(freed) >= min(num_tokens, num_evictable)
        is_wanted = {entry: self.model.is_wanted(*entry) for entry in self.model.slots}
        gone = self.model.forget(freed, is_remembered=True)
        self.pool.give_back(freed)
        if len(freed) > num_tokens + self.page:
            assert any((np.array(prefix[-2 * self.page :]) < 0).any() for _, prefix in gone)
        for name, prefix in gone:
            above = prefix[: -self.page]
            if above and (name, above) in self.model.slots:
                assert (name, above) in starts or not _is_inside(prefix, len(above))
        if any(is_wanted[entry] for entry in gone):
            assert all(is_wanted[entry] for entry in self.model.leaves())

    def node_starts(self):
        """Prefixes at which a node begins."""
        return {
            (name, prefix[: len(prefix) - node.num_tokens])
            for node, name, prefix in self.nodes()
        }

    def nodes(self):
        """Every node with its namespace and its prefix."""
        for node in self.tree.nodes():
            runs, passed = [], node
            while not passed.is_root:
                runs.append(passed.keys)
                passed = passed.parent
            yield node, passed.namespace, tuple(np.concatenate(runs[::-1]).tolist())

    @precondition(lambda self: self.pins)
    @rule(number=NUMBERS, symbols=SYMBOLS, other=st.one_of(st.none(), SYMBOLS))
    def fail(self, number, symbols, other):
        """What a failed step put in goes, except what somebody pinned; nothing remembers it."""
        node, name, prefix = self.pins[number % len(self.pins)]
        keys = (*prefix, *self.keys(symbols).tolist())
        keys = keys[: len(keys) - len(keys) % self.page]
        num_pages = (len(keys) - len(prefix)) // self.page
        if not num_pages or self.model.num_cached(name, keys) > len(prefix):
            return
        if not self.room_for(num_pages):
            return
        slots = self.pool.take(num_pages)
        leaf = self.tree.fill(node, np.array(keys[len(prefix) :]), np.array(slots))[-1]
        self.model.fill(name, keys, len(prefix), slots)
        if other is not None:
            self.match_and_pin(name, (*symbols[:2], *other), 0, is_atomic=False)
        freed = self.tree.prune(leaf, node).tolist()
        want = []
        for each in reversed(self.model.prefixes(keys, len(prefix))):
            if self.model.is_pinned(name, each):
                break
            want += self.model.slots[name, each]
        assert sorted(freed) == sorted(want)
        self.model.forget(freed, is_remembered=False)
        self.pool.give_back(freed)

    # Guests

    @rule(name=NAMES, symbols=SYMBOLS, client=CLIENTS)
    def hang(self, name, symbols, client):
        """A waiting sequence hangs where its whole pages end."""
        keys = self.keys(symbols)
        hook = self.tree.hang(name, keys, client)
        prefix = tuple(keys[: len(keys) - len(keys) % self.page].tolist())
        assert hook.depth == len(prefix)
        self.hooks.append((hook, name, prefix, client))
        self.model.guests[name, prefix] += 1

    @precondition(lambda self: self.hooks)
    @rule(number=NUMBERS)
    def unhang(self, number):
        """It is taken down again."""
        hook, name, prefix, client = self.hooks.pop(number % len(self.hooks))
        self.tree.unhang(hook, client)
        self.model.guests[name, prefix] -= 1

    @rule(name=NAMES, symbols=SYMBOLS)
    def explain(self, name, symbols):
        """Why tokens are missing is what the model saw happen."""
        keys = self.keys(symbols)
        got = self.tree.explain(name, keys, len(keys))
        want = self.model.explain(name, tuple(keys.tolist()), ["", "x", "y"])
        if self.limit >= 10**9:
            assert got == want
            return
        assert got[0] == want[0] <= got[1] <= want[1]
        assert got[2] >= got[1]

    # What always holds

    @invariant()
    def books_are_right(self):
        """The tree agrees with itself and with the model; every slot has one owner."""
        if not hasattr(self, "tree"):
            return
        self.tree.verify([node for node, _, _ in self.pins])
        assert self.tree.num_tokens == len(self.model.slots) * self.page
        assert self.tree.num_evictable == self.model.num_evictable()
        assert self.tree.num_wanted == self.model.num_wanted()
        assert len(self.model.slots) + len(self.pool.free) == NUM_PAGES
        assert self.tree._history.num_tokens <= self.limit
        cached = {}
        for node, name, prefix in self.nodes():
            counted = sum(
                count
                for (other, keys), count in self.model.guests.items()
                if other == name and keys[: len(prefix)] == prefix
            )
            assert sum(node.guests.values()) == counted
            if node.is_ghost:
                continue
            start = len(prefix) - node.num_tokens
            for end in range(start + self.page, len(prefix) + 1, self.page):
                at = end - start
                cached[name, prefix[:end]] = node.slots[at - self.page : at].tolist()
        assert cached == self.model.slots

    @invariant()
    def handles_stay(self):
        """A pin and a hook end where they did, whatever was split or joined."""
        for node, _, prefix in getattr(self, "pins", ()):
            assert node.depth == len(prefix)
        for hook, _, prefix, client in getattr(self, "hooks", ()):
            assert hook.depth == len(prefix)
            assert hook.guests[client] > 0

    def teardown(self):
        """When all is let go, all can be evicted, and nothing is left."""
        if not hasattr(self, "tree"):
            return
        while self.pins:
            self.unpin(0)
        while self.hooks:
            self.unhang(0)
        self.books_are_right()
        if self.tree.num_evictable:
            self.evict(self.tree.num_evictable)
        assert (self.tree.num_tokens, self.tree.num_nodes) == (0, 0)
        if self.limit == 0:
            assert self.tree.num_ghosts == 0
            assert self.tree.roots() == {}


def _is_inside(keys, position):
    """Whether a cut at a position would divide a picture."""
    before, after = keys[position - 1], keys[position]
    return before < 0 and after == before - 1


TreeMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestTree = TreeMachine.TestCase
TestTree.__doc__ = "The tree does what a dictionary of prefixes does."
