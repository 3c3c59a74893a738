"""Addresses of servers as a user gives them."""

import pytest

from mmserve.batch import server_urls
from mmserve.core import BadRequest


def test_servers_may_stand_in_one_word():
    """Repeated and with commas, with spaces and slashes at the end."""
    given = ("http://a:1/, https://b", "http://[::1]:2")
    assert server_urls(given) == ("http://a:1", "https://b", "http://[::1]:2")


@pytest.mark.parametrize("given", ["a:1", "ftp://a", "http://", "http://a:x", "http://[a"])
def test_what_is_no_server_is_refused(given):
    """The error names the value and shows the form."""
    with pytest.raises(BadRequest) as caught:
        server_urls((given,))
    assert given in caught.value.message
    assert "http://host:port" in (caught.value.hint or "")


def test_a_server_named_twice_is_refused():
    """It would be taken for two."""
    with pytest.raises(BadRequest, match="twice"):
        server_urls(("http://a:1", "http://a:1/"))
