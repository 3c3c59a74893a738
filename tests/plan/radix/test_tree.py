"""The radix tree finds the longest prefix, shares it, and forgets the oldest first."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmserve.core import LedgerBroken
from mmserve.radix import RadixTree


def keys_of(values) -> np.ndarray:
    """Keys from a list."""
    return np.array(values, dtype=np.int64)


def put(tree, keys, slots, namespace=""):
    """Insert whole keys, unpinned; the insertion."""
    keys = keys_of(keys)
    root = tree.pin(tree.match(namespace, keys, 0))
    result = tree.insert(root, keys, keys_of(slots))
    tree.unpin(root)
    return result


def find(tree, keys, limit=None, **options):
    """A match of a list of keys."""
    keys = keys_of(keys)
    return tree.match("", keys, len(keys) if limit is None else limit, **options)


def test_an_empty_tree_matches_nothing():
    """No namespace, no match, and looking leaves no trace."""
    tree = RadixTree()
    assert find(tree, [1, 2, 3]).num_tokens == 0
    assert tree.roots() == {}


def test_a_match_ends_where_the_keys_differ():
    """The common prefix is found with its slots, also inside a run."""
    tree = RadixTree()
    put(tree, [1, 2, 3, 4], [10, 11, 12, 13])
    match = find(tree, [1, 2, 3, 9])
    assert (match.num_tokens, match.slots.tolist()) == (3, [10, 11, 12])
    assert not match.is_whole


def test_a_match_never_passes_its_limit():
    """The caller says how many tokens may come from the cache."""
    tree = RadixTree()
    put(tree, [1, 2, 3, 4], [10, 11, 12, 13])
    assert find(tree, [1, 2, 3, 4], limit=3).num_tokens == 3


def test_matching_is_pure_and_pinning_splits():
    """Only a pin cuts a run in two."""
    tree = RadixTree()
    put(tree, [1, 2, 3, 4], [10, 11, 12, 13])
    match = find(tree, [1, 2])
    assert tree.num_nodes == 1
    node = tree.pin(match)
    assert (tree.num_nodes, node.keys.tolist()) == (2, [1, 2])
    assert find(tree, [1, 2, 3, 4]).slots.tolist() == [10, 11, 12, 13]
    tree.verify([node])


def test_a_pin_on_a_run_holds_when_another_splits_it():
    """The lower half of a split is the node that was pinned."""
    tree = RadixTree()
    put(tree, [1, 2, 3, 4], [10, 11, 12, 13])
    low = tree.pin(find(tree, [1, 2, 3, 4]))
    high = tree.pin(find(tree, [1, 2]))
    assert low.keys.tolist() == [3, 4]
    tree.verify([low, high])
    tree.unpin(low)
    assert tree.num_evictable == 2
    assert tree.evict(4).tolist() == [12, 13]
    tree.verify([high])


def test_insertion_reports_what_was_there():
    """Tokens already in the tree keep its slots; the caller's are duplicates."""
    tree = RadixTree()
    put(tree, [1, 2, 3], [10, 11, 12])
    result = put(tree, [1, 2, 7, 8], [20, 21, 22, 23])
    assert (result.num_existing, result.slots.tolist()) == (2, [10, 11])
    assert find(tree, [1, 2, 7, 8]).slots.tolist() == [10, 11, 22, 23]
    assert tree.num_tokens == 5


def test_namespaces_share_nothing():
    """The same keys in another namespace are not found."""
    tree = RadixTree()
    put(tree, [1, 2, 3], [10, 11, 12], namespace="tenant")
    assert find(tree, [1, 2, 3]).num_tokens == 0
    assert tree.match("tenant", keys_of([1, 2, 3]), 3).num_tokens == 3


def test_a_namespace_is_forgotten_with_its_last_token():
    """Salts do not pile up."""
    tree = RadixTree()
    put(tree, [1, 2], [0, 1], namespace="tenant")
    tree.evict(2)
    assert tree.roots() == {}


def test_matches_end_at_pages():
    """With pages of 4 tokens a match is a multiple of 4."""
    tree = RadixTree(page_tokens=4)
    put(tree, range(8), range(8))
    assert [find(tree, range(n)).num_tokens for n in (3, 4, 7, 8, 10)] == [0, 4, 4, 8, 8]


@pytest.mark.parametrize(("limit", "want"), [(2, 2), (3, 2), (4, 2), (5, 5), (6, 6)])
def test_a_match_never_ends_inside_an_atomic_span(limit, want):
    """A match that would end inside [2, 5) ends at 2."""
    tree = RadixTree()
    put(tree, [1, 2, -1, -2, -3, 3], range(6))
    match = find(tree, [1, 2, -1, -2, -3, 3], limit=limit, atomic=((2, 5),))
    assert match.num_tokens == len(match.slots) == want


def test_a_match_ends_inside_no_span_if_pages_begin_in_the_one_before():
    """Going back from [7, 10) to the page at 4 would end in [1, 6), so it goes back to 0."""
    tree = RadixTree(page_tokens=4)
    put(tree, range(12), range(12))
    atomic = ((1, 6), (7, 10))
    ends = [find(tree, range(12), limit=n, atomic=atomic).num_tokens for n in (4, 8, 12)]
    assert ends == [0, 0, 12]


def test_the_oldest_leaf_goes_first():
    """Eviction follows the order of last use."""
    tree = RadixTree()
    for first in (1, 2, 3):
        put(tree, [first, 0], [first * 10, first * 10 + 1])
    tree.unpin(tree.pin(find(tree, [1, 0])))
    assert tree.evict(2).tolist() == [20, 21]
    assert tree.evict(2).tolist() == [30, 31]


def test_a_long_leaf_loses_only_its_end():
    """What is evicted is the end of the leaf, as much as is needed."""
    tree = RadixTree()
    put(tree, [1, 2, 3, 4], [10, 11, 12, 13])
    assert tree.evict(1).tolist() == [13]
    assert find(tree, [1, 2, 3, 4]).num_tokens == 3
    tree.verify([])


def test_eviction_never_cuts_a_picture():
    """A cut that would fall into a picture takes all of it; what stands before it stays."""
    tree = RadixTree()
    put(tree, [1, -1, -2, -3, 5], range(5))
    assert tree.evict(2).tolist() == [1, 2, 3, 4]
    assert find(tree, [1, -1]).num_tokens == 1


def test_pinned_tokens_stay():
    """Nothing on a pinned path is evicted, however much is asked for."""
    tree = RadixTree()
    put(tree, [1, 2, 3], [10, 11, 12])
    put(tree, [1, 2, 4], [0, 0, 13])
    node = tree.pin(find(tree, [1, 2, 3]))
    assert tree.num_evictable == 1
    assert tree.evict(100).tolist() == [13]
    tree.verify([node])


def test_what_a_pin_would_take_from_the_evictable_is_known_before():
    """`num_evictable_in` says by how much `pin` lowers the evictable count."""
    tree = RadixTree()
    put(tree, [1, 2, 3, 4], range(4))
    held = tree.pin(find(tree, [1, 2]))
    match = find(tree, [1, 2, 3])
    want = tree.num_evictable - tree.num_evictable_in(match)
    node = tree.pin(match)
    assert tree.num_evictable == want == 1
    tree.verify([held, node])


def test_a_failed_step_is_taken_out_again():
    """Pruning forgets unpinned nodes up to the one given, and no further."""
    tree = RadixTree()
    put(tree, [1, 2], [10, 11])
    above = tree.pin(find(tree, [1, 2]))
    (leaf,) = tree.fill(above, keys_of([3, 4]), keys_of([12, 13]))
    tree.unpin(tree.pin(find(tree, [1, 2, 3])))
    assert sorted(tree.prune(leaf, above).tolist()) == [12, 13]
    assert find(tree, [1, 2, 3, 4]).num_tokens == 2
    tree.verify([above])


def test_pruning_stops_at_what_a_neighbour_uses():
    """A node that is pinned stays, and so does all above it."""
    tree = RadixTree()
    root = tree.pin(find(tree, [1, 2, 3]))
    (leaf,) = tree.fill(root, keys_of([1, 2, 3]), keys_of([0, 1, 2]))
    neighbour = tree.pin(find(tree, [1, 2]))
    assert tree.prune(leaf, root).tolist() == [2]
    tree.verify([root, neighbour])


def test_growing_beside_a_run_that_begins_the_same_is_an_error():
    """Siblings differ in their first key."""
    tree = RadixTree()
    put(tree, [1, 2], [0, 1])
    root = tree.pin(find(tree, [9]))
    with pytest.raises(LedgerBroken):
        tree.fill(root, keys_of([1, 3]), keys_of([2, 3]))


def test_unpinning_too_often_is_an_error():
    """Pins and unpins come in pairs."""
    tree = RadixTree()
    put(tree, [1], [0])
    node = tree.pin(find(tree, [1]))
    tree.unpin(node)
    with pytest.raises(LedgerBroken):
        tree.unpin(node)


@pytest.mark.parametrize("field", ["num_tokens", "num_evictable", "num_nodes"])
def test_verify_sees_wrong_counts(field):
    """A count that disagrees with the nodes is found."""
    tree = RadixTree()
    put(tree, [1, 2], [0, 1])
    setattr(tree, field, getattr(tree, field) + 1)
    with pytest.raises(LedgerBroken):
        tree.verify([])


def test_verify_sees_a_forgotten_pin():
    """A node with more users than pins is found."""
    tree = RadixTree()
    put(tree, [1, 2], [0, 1])
    tree.pin(find(tree, [1, 2]))
    with pytest.raises(LedgerBroken):
        tree.verify([])


def test_the_queue_of_leaves_is_swept():
    """Using one leaf again and again does not make the queue grow without end."""
    tree = RadixTree()
    put(tree, [1, 2], [0, 1])
    for _ in range(1000):
        tree.unpin(tree.pin(find(tree, [1, 2])))
    assert len(tree._leaves._entries) < 100
    assert len(tree.evict(2)) == 2


KEYS = st.lists(st.integers(-3, 2), min_size=1, max_size=8).map(tuple)
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS),
        st.tuples(st.just("pin"), KEYS),
        st.tuples(st.just("unpin"), st.integers(0, 9)),
        st.tuples(st.just("evict"), st.integers(1, 6)),
    ),
    max_size=40,
)


class Model:
    """A plain dictionary of prefixes, each with its slot, and a list of pins."""

    def __init__(self):
        self.tree, self.slots, self.pins, self.next_slot = RadixTree(), {}, [], 0

    def put(self, keys):
        """Insert with new slots; what the tree had keeps its own."""
        fresh = list(range(self.next_slot, self.next_slot + len(keys)))
        self.next_slot += len(keys)
        put(self.tree, keys, fresh)
        for end, slot in enumerate(fresh, 1):
            self.slots.setdefault(keys[:end], slot)

    def pin(self, keys):
        """Pin the longest prefix."""
        match = find(self.tree, keys)
        self.pins.append((self.tree.pin(match), keys[: match.num_tokens]))

    def unpin(self, number):
        """Take back a pin."""
        if self.pins:
            self.tree.unpin(self.pins.pop(number % len(self.pins))[0])

    def evict(self, amount):
        """Evict, and forget the prefixes whose slots were freed."""
        num_evictable = self.tree.num_evictable
        freed = self.tree.evict(amount).tolist()
        assert len(freed) >= min(amount, num_evictable)
        assert len(set(freed)) == len(freed)
        gone = [prefix for prefix, slot in self.slots.items() if slot in set(freed)]
        assert len(gone) == len(freed)
        for prefix in gone:
            del self.slots[prefix]

    def check(self):
        """Pinned prefixes are whole; every match is what the dictionary says."""
        self.tree.verify([node for node, _ in self.pins])
        assert self.tree.num_tokens == len(self.slots)
        for _, prefix in self.pins:
            assert all(prefix[:end] in self.slots for end in range(1, len(prefix) + 1))
        for prefix in self.slots:
            want = [self.slots[prefix[:end]] for end in range(1, len(prefix) + 1)]
            assert find(self.tree, [*prefix, 7]).slots.tolist() == want


@settings(max_examples=80, deadline=None)
@given(MOVES)
def test_the_tree_is_a_dictionary_of_prefixes(moves):
    """Whatever is put, pinned and evicted, matches are those of a plain dictionary."""
    model = Model()
    for name, argument in moves:
        getattr(model, name)(argument)
        model.check()
