"""Which leaf goes first, by policy."""

import random

import numpy as np
import pytest

from mmserve.core import Eviction
from mmserve.radix import RadixTree, worth_of

POLICIES = Eviction.__args__


def keys_of(values) -> np.ndarray:
    """Keys from values."""
    return np.array(list(values), dtype=np.int64)


class Cache:
    """A tree of runs, each with a name; slots are numbered on."""

    def __init__(self, eviction, num_slots=100):
        self.tree = RadixTree(worth=worth_of(eviction, num_slots))
        self.runs = {}
        self.slot = 0

    def put(self, name, *values):
        """Give a run KV."""
        keys = self.runs[name] = keys_of(values)
        root = self.tree.pin(self.tree.match("", keys, 0))
        self.tree.insert(root, keys, np.arange(self.slot, self.slot + len(keys)))
        self.tree.unpin(root)
        self.slot += len(keys)

    def use(self, name):
        """Hit a run once."""
        keys = self.runs[name]
        self.tree.unpin(self.tree.pin(self.tree.match("", keys, len(keys))))

    def here(self):
        """Names of the runs that are whole."""
        return {
            name
            for name, keys in self.runs.items()
            if self.tree.match("", keys, len(keys)).num_tokens == len(keys)
        }

    def order(self):
        """Names in the order in which they go, one token at a time."""
        names, here = [], self.here()
        while here:
            self.tree.evict(1)
            names += sorted(here - self.here())
            here = self.here()
        return names


def test_lru_forgets_what_was_used_longest_ago():
    """Hits before the last one do not count."""
    cache = Cache("lru")
    for name in "abc":
        cache.put(name, ord(name))
    for name in "aaaacb":
        cache.use(name)
    assert cache.order() == ["a", "c", "b"]


def test_lfu_forgets_what_was_hit_least():
    """Fewest hits first, then the one used longest ago."""
    cache = Cache("lfu")
    for name in "abcd":
        cache.put(name, ord(name))
    for name in "aaabdc":
        cache.use(name)
    assert cache.order() == ["b", "d", "c", "a"]


def test_slru_keeps_what_was_hit_before_what_was_seen_once():
    """A scan of new runs does not drive out one that was hit."""
    cache = Cache("slru")
    cache.put("hit", 1)
    cache.use("hit")
    for number in range(5):
        cache.put(f"scan {number}", 10 + number)
    assert cache.order()[-1] == "hit"


def test_slru_protection_ends_with_a_poolful_of_evictions():
    """A run hit once, and not since two pools' worth went, goes like any other."""
    cache = Cache("slru", num_slots=4)
    cache.put("hit", 1)
    cache.use("hit")
    for number in range(9):
        cache.put(f"scan {number}", 10 + number)
        cache.use(f"scan {number}")
        if number:
            cache.tree.evict(1)
    assert "hit" not in cache.here()


def test_cost_keeps_pictures_before_text():
    """A picture token costs the encoder as well, and so is kept longer than text."""
    cache = Cache("cost")
    cache.put("picture", -1, -2, -3)
    cache.put("text", 1, 2, 3)
    cache.use("text")
    cache.use("picture")
    cache.use("text")
    assert cache.order() == ["text", "picture"]


def test_cost_keeps_what_is_hit_often():
    """Of two texts of one size the one with more uses stays, whichever was last."""
    cache = Cache("cost")
    cache.put("often", 1)
    cache.put("once", 2)
    for _ in range(3):
        cache.use("often")
    cache.use("once")
    assert cache.order() == ["once", "often"]


def test_cost_ages():
    """What was worth much once goes, when everything since was worth as much."""
    cache = Cache("cost")
    cache.put("old", 1)
    for _ in range(3):
        cache.use("old")
    for number in range(12):
        cache.put(f"new {number}", 10 + number)
        for _ in range(2):
            cache.use(f"new {number}")
        if number > 1:
            cache.tree.evict(1)
    assert "old" not in cache.here()


@pytest.mark.parametrize("eviction", POLICIES)
def test_wanted_leaves_go_last(eviction):
    """What a waiting sequence will want goes after all others, whatever its worth."""
    cache = Cache(eviction)
    cache.put("wanted", 1)
    for name in ("x", "y", "z"):
        cache.put(name, ord(name))
        for _ in range(3):
            cache.use(name)
    hook = cache.tree.hang("", keys_of([1, 5]), "a")
    assert cache.order()[-1] == "wanted"
    cache.tree.unhang(hook, "a")


@pytest.mark.parametrize("eviction", POLICIES)
def test_a_leaf_that_is_wanted_no_more_goes_in_its_turn(eviction):
    """Passed over while it was wanted, a leaf is found again when its guest has left."""
    cache = Cache(eviction)
    cache.put("wanted", 1)
    for name in ("x", "y"):
        cache.put(name, ord(name))
        cache.use(name)
    hook = cache.tree.hang("", keys_of([1]), "a")
    assert cache.tree.evict(1).tolist() == [1]
    cache.tree.unhang(hook, "a")
    assert cache.order() == ["wanted", "y"]


@pytest.mark.parametrize("eviction", POLICIES)
def test_a_parent_goes_after_its_last_child(eviction):
    """Leaves first, and then what they leave."""
    cache = Cache(eviction)
    cache.put("stem", 1, 2)
    cache.put("left", 1, 2, 3)
    cache.put("right", 1, 2, 4)
    assert cache.order()[-1] == "stem"


@pytest.mark.parametrize("eviction", POLICIES)
def test_everything_unpinned_can_go(eviction):
    """After any mix of uses all that is not pinned can be evicted, and nothing else."""
    chance = random.Random(5)
    cache = Cache(eviction, num_slots=20)
    for number in range(60):
        name = f"run {number}"
        cache.put(name, *(chance.randrange(3) for _ in range(chance.randrange(1, 6))))
        cache.use(chance.choice(list(cache.runs)))
        if number % 4 == 0:
            cache.tree.evict(chance.randrange(1, 5))
        cache.tree.verify([])
    keys = cache.runs["run 59"]
    node = cache.tree.pin(cache.tree.match("", keys, len(keys)))
    num_pinned = node.depth
    cache.tree.evict(10**6)
    assert (cache.tree.num_tokens, cache.tree.num_evictable) == (num_pinned, 0)
    cache.tree.verify([node])
