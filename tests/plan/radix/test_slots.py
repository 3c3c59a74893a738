"""The pool of slots gives every slot to one owner, contiguous where it can."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmserve.core import LedgerBroken
from mmserve.radix import SlotPool


def test_a_first_taker_gets_the_lowest_slots():
    """An empty pool is used from slot 0 on."""
    assert SlotPool(100).allocate(5).tolist() == [0, 1, 2, 3, 4]


def test_a_taker_goes_on_behind_its_last_slot():
    """Growth stays contiguous while the next slot is free."""
    pool = SlotPool(100)
    first = pool.allocate(5)
    assert pool.allocate(1, after=int(first[-1])).tolist() == [5]
    assert pool.allocate(3, after=5).tolist() == [6, 7, 8]


def test_takers_leave_each_other_room_to_grow():
    """Two takers start in blocks of their own, so both can grow in place."""
    pool = SlotPool(100)
    first, second = pool.allocate(5), pool.allocate(5)
    for _ in range(10):
        first = np.append(first, pool.allocate(1, after=int(first[-1])))
        second = np.append(second, pool.allocate(1, after=int(second[-1])))
    assert (np.diff(first) == 1).all()
    assert (np.diff(second) == 1).all()


def test_a_run_is_preferred_to_scattered_slots():
    """With no free block left, the lowest run that is long enough is taken."""
    pool = SlotPool(32)
    slots = pool.allocate(32)
    pool.give_back(slots[[3, 10, 11, 12, 20]])
    assert pool.allocate(3).tolist() == [10, 11, 12]
    assert pool.allocate(2).tolist() == [3, 20]


def test_the_pool_can_be_taken_to_the_last_slot():
    """No slot is kept back, whatever the size of the pool."""
    pool = SlotPool(37)
    assert sorted([*pool.allocate(33), *pool.allocate(4)]) == list(range(37))
    assert pool.num_free == 0
    with pytest.raises(LedgerBroken):
        pool.allocate(1)


@pytest.mark.parametrize("slots", [[0], [40], [1, 1]])
def test_freeing_what_is_free_is_an_error(slots):
    """A slot freed twice, or named twice, breaks the ledger at once."""
    pool = SlotPool(64)
    pool.allocate(4)
    if slots == [0]:
        pool.give_back(np.array([0]))
    with pytest.raises(LedgerBroken):
        pool.give_back(np.array(slots))


def test_verify_sees_a_wrong_count():
    """A count that disagrees with the list is found."""
    pool = SlotPool(64)
    pool.verify()
    pool.num_free -= 1
    with pytest.raises(LedgerBroken):
        pool.verify()


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 100), st.lists(st.tuples(st.booleans(), st.integers(1, 20))))
def test_every_slot_has_one_owner(num_slots, moves):
    """Whatever is taken and freed, owners never overlap and nothing is lost."""
    pool, owned = SlotPool(num_slots), []
    for takes, amount in moves:
        if takes and amount <= pool.num_free:
            owned.append(pool.allocate(amount, after=int(owned[-1][-1]) if owned else None))
        elif owned:
            pool.give_back(owned.pop(amount % len(owned)))
        pool.verify()
        taken = [int(slot) for slots in owned for slot in slots]
        assert len(set(taken)) == len(taken) == num_slots - pool.num_free
        assert sorted(taken + pool.free_slots().tolist()) == list(range(num_slots))
