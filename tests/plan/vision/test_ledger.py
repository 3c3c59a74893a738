"""The ledger of encoded pictures keeps what is pinned and drops the oldest of the rest."""

import pytest

from mmserve.core import LedgerBroken
from mmserve.vision.ledger import FeatureLedger

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


def admit(ledger, digest, num_tokens):
    """Admit and unpin."""
    ledger.admit(digest, num_tokens)
    ledger.unpin(digest)


def test_an_admitted_item_is_here_and_pinned():
    """An item counts its tokens and has one pin."""
    ledger = FeatureLedger(100)
    ledger.admit(A, 40)
    assert A in ledger
    assert (ledger.num_tokens, ledger.num_pinned_tokens, len(ledger)) == (40, 40, 1)


def test_the_least_recently_used_is_dropped():
    """Room is made by dropping the item that was not pinned for the longest time."""
    ledger = FeatureLedger(100)
    admit(ledger, A, 50)
    admit(ledger, B, 50)
    ledger.pin(A)
    ledger.unpin(A)
    admit(ledger, C, 50)
    assert ledger.take_drops() == (B,)
    assert A in ledger
    assert B not in ledger


def test_a_pinned_item_is_never_dropped():
    """Beside a pinned item only what is left fits."""
    ledger = FeatureLedger(100)
    ledger.admit(A, 60)
    assert not ledger.can_admit(50)
    with pytest.raises(LedgerBroken):
        ledger.admit(B, 50)
    ledger.admit(B, 40)
    assert ledger.take_drops() == ()


def test_an_item_larger_than_all_is_admitted_alone():
    """With nothing pinned, any size is admitted and the rest goes."""
    ledger = FeatureLedger(100)
    admit(ledger, A, 60)
    assert ledger.can_admit(500)
    ledger.admit(B, 500)
    assert ledger.take_drops() == (A,)
    assert not ledger.can_admit(1)
    ledger.verify()


def test_pins_count():
    """An item pinned twice must be unpinned twice."""
    ledger = FeatureLedger(100)
    ledger.admit(A, 60)
    ledger.pin(A)
    ledger.unpin(A)
    assert ledger.pins() == {A: 1}
    with pytest.raises(LedgerBroken):
        ledger.forget(A)
    ledger.unpin(A)
    ledger.forget(A)
    assert ledger.num_tokens == 0


def test_an_item_is_admitted_once():
    """Encoding what is at hand is an error."""
    ledger = FeatureLedger(100)
    ledger.admit(A, 10)
    with pytest.raises(LedgerBroken):
        ledger.admit(A, 10)


def test_drops_are_named_once_unless_their_step_failed():
    """Drops are taken once; those of a failed step are named again, if still true."""
    ledger = FeatureLedger(100)
    admit(ledger, A, 10)
    admit(ledger, B, 10)
    ledger.forget_unpinned()
    drops = ledger.take_drops()
    assert drops == (A, B)
    assert ledger.take_drops() == ()
    admit(ledger, B, 10)
    ledger.drop_again(drops)
    assert ledger.take_drops() == (A,)


def test_verify_sees_a_wrong_count():
    """A count that disagrees with the items is found."""
    ledger = FeatureLedger(100)
    ledger.admit(A, 10)
    ledger.verify()
    ledger.num_tokens += 1
    with pytest.raises(LedgerBroken):
        ledger.verify()
