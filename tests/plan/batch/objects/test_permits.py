"""Which addresses of object stores a run may read."""

import pytest

from mmserve.batch.objects import Permits, is_object
from mmserve.core import BadRequest, MediaRefused

PERMITS = Permits(["s3://bucket/clips/", "memory://open"])


@pytest.mark.parametrize(
    ("given", "fetched"),
    [
        ("s3://bucket/clips/a.mp4", "s3://bucket/clips/a.mp4"),
        ("S3://bucket/clips/./x/../a.mp4", "s3://bucket/clips/a.mp4"),
        ("s3://bucket//clips//a b?#%2e.mp4", "s3://bucket/clips/a b?#%2e.mp4"),
        ("memory://open/a", "memory://open/a"),
    ],
)
def test_what_is_checked_is_what_is_fetched(given, fetched):
    """Dots and empty names are gone; nothing else changes."""
    assert str(PERMITS.checked(given)) == fetched


@pytest.mark.parametrize(
    "given",
    [
        "s3://bucket/clips2/a.mp4",
        "s3://bucket/clips/../secret.mp4",
        "s3://bucket2/clips/a.mp4",
        "gs://bucket/clips/a.mp4",
        "s3a://bucket/clips/a.mp4",
        "memory://opened/a",
    ],
)
def test_whole_names_count(given):
    """What only begins alike, and what climbs out, is refused; address and flag are named."""
    with pytest.raises(MediaRefused, match="not permitted") as caught:
        PERMITS.checked(given)
    assert given in str(caught.value)
    assert "--allow-store" in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        "s3://bucket/clips/../../../x",
        "s3://bucket/clips/a::file:///x",
        "s3://bucket/clips/\\..\\x",
    ],
)
def test_tricks_are_refused(given):
    """Climbing out of the store, addresses in addresses, backslashes: named as they are."""
    with pytest.raises(MediaRefused) as caught:
        Permits(["s3://"]).checked(given)
    assert caught.value.fields["reason"] == "fetch_forbidden"


def test_nothing_is_permitted_by_default():
    """Without a prefix every store is refused, with the prefix that would permit it."""
    with pytest.raises(MediaRefused, match="--allow-store s3://bucket/ permits it"):
        Permits([]).checked("s3://bucket/a.mp4")


@pytest.mark.parametrize(
    "prefix",
    ["/folder", "file:///folder/", "http://host/", "local://x", "zip://a::s3://b", "s3"],
)
def test_files_and_hosts_are_no_stores(prefix):
    """They have their own guards, which no prefix goes around."""
    with pytest.raises(BadRequest, match="allow_store"):
        Permits([prefix])


@pytest.mark.parametrize(
    ("place", "expected"),
    [("s3://b/a", True), ("http://h/a", False), ("data:,x", False), ("file:///a", False)],
)
def test_other_addresses_are_left_to_the_engine(place, expected):
    """Only stores' addresses are objects."""
    assert is_object(place) == expected
