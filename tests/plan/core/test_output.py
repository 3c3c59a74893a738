"""What the cache had of a prompt, as a table."""

from __future__ import annotations

import pytest

from mmserve.core import CacheUse, cache_table, read_cache_table

USES = (
    CacheUse("text", "hit", 5),
    CacheUse("text", "boundary", 1),
    CacheUse("image", "order", 36),
)


def test_a_table_holds_tokens_by_kind_and_outcome():
    """Pairs that come twice are added."""
    assert cache_table((*USES, CacheUse("text", "hit", 2))) == {
        "text": {"hit": 7, "boundary": 1},
        "image": {"order": 36},
    }


def test_a_table_read_is_what_was_written():
    """The counts survive the way through JSON."""
    assert set(read_cache_table(cache_table(USES))) == set(USES)


@pytest.mark.parametrize(
    "table", [None, 5, [], {"text": 5}, {"audio": {"hit": 1}}, {"text": {"new": 1, "hit": "x"}}]
)
def test_other_forms_hold_nothing(table):
    """A server of another make may say something else under this name."""
    assert read_cache_table(table) == ()
