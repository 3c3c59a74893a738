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


def test_the_rest_of_a_page_is_used_first():
    """With pages of 8, a taker of 5 tokens has 3 more before a page is taken."""
    pool = SlotPool(64, page_tokens=8)
    assert pool.allocate(5).tolist() == [0, 1, 2, 3, 4]
    assert (pool.num_left_after(5), pool.num_free) == (3, 56)
    assert pool.allocate(3, after=4).tolist() == [5, 6, 7]
    assert pool.num_free == 56
    assert pool.allocate(1, after=7).tolist() == [8]
    assert pool.num_free == 48


def test_a_page_that_is_taken_behind_sends_the_taker_to_a_free_block():
    """If the next page is another's, growth goes on in the lowest block that is wholly free."""
    pool = SlotPool(128, page_tokens=8)
    first = pool.allocate(8)
    pool.allocate(8, after=int(first[-1]))
    assert pool.allocate(4, after=int(first[-1])).tolist() == [32, 33, 34, 35]


def test_growth_across_a_page_is_contiguous():
    """The rest of the page and the pages behind it come in one piece."""
    pool = SlotPool(128, page_tokens=16)
    last = int(pool.allocate(10)[-1])
    assert pool.allocate(20, after=last).tolist() == list(range(10, 30))


def test_a_page_is_freed_with_its_first_slot():
    """Giving back the end of a page frees nothing; the page goes with its first slot."""
    pool = SlotPool(64, page_tokens=8)
    slots = pool.allocate(16)
    pool.give_back(slots[3:8])
    assert pool.num_free == 48
    pool.give_back(slots[:3])
    assert pool.num_free == 56
    pool.give_back(slots[8:9])
    assert pool.num_free == 64
    pool.verify()


def test_slots_that_make_up_no_page_are_not_used():
    """A pool of 70 slots in pages of 16 has 64."""
    pool = SlotPool(70, page_tokens=16)
    assert (pool.num_slots, pool.num_free) == (64, 64)
    assert sorted(pool.allocate(64).tolist()) == list(range(64))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 64),
    st.integers(1, 12),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(1, 100)), max_size=40),
)
def test_every_page_has_one_owner(page_tokens, num_pages, moves):
    """Takers come, grow and go: no two share a page, the counts are right, all comes back."""
    pool, owned = SlotPool(num_pages * page_tokens, page_tokens), []
    for kind, who, amount in moves:
        if kind == 0 and owned:
            pool.give_back(owned.pop(who % len(owned)))
        else:
            is_growth = kind > 1 and bool(owned)
            held = owned.pop(who % len(owned)) if is_growth else np.empty(0, dtype=np.int64)
            num_left = pool.num_left_after(len(held))
            amount = min(amount, num_left + pool.num_free)
            if amount:
                more = pool.allocate(amount, after=int(held[-1]) if is_growth else None)
                if is_growth and num_left:
                    rest = min(amount, num_left)
                    assert more[:rest].tolist() == list(
                        range(held[-1] + 1, held[-1] + 1 + rest)
                    )
                held = np.append(held, more)
            owned += [held] if len(held) else []
        pool.verify()
        pages = [page for slots in owned for page in set((slots // page_tokens).tolist())]
        assert len(set(pages)) == len(pages)
        assert pool.num_free == (num_pages - len(pages)) * page_tokens
        for slots in owned:
            offsets = slots % page_tokens
            assert offsets.tolist() == [n % page_tokens for n in range(len(slots))]
    for slots in owned:
        pool.give_back(slots)
    assert pool.num_free == pool.num_slots
