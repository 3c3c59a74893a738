"""Which network addresses are public, and how addresses are shown."""

import pytest

from mmserve.vision.addresses import is_public_address, shown_url

PRIVATE = [
    "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1",
    "100.127.255.255", "169.254.169.254", "192.0.0.1", "192.0.2.1", "198.18.0.1", "203.0.113.1",
    "224.0.0.1", "240.0.0.1", "255.255.255.255", "::", "::1", "::ffff:127.0.0.1",
    "::ffff:10.0.0.1", "::127.0.0.1", "fe80::1", "fe80::1%lo", "fec0::1", "fc00::1", "fd12::1",
    "ff02::1", "64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::", "2002:a00:1::",
    "2001:db8::1", "2001:0:7f00:1::", "2001:0:101:101::1", "2002:7f00:1::5efe:101:101",
    "2606:4700::5efe:7f00:1", "2606:4700::200:5efe:a00:1", "3fff::1", "192.88.99.1", "4000::1",
    "5f00::1", "2001:2::1", "::ffff:0:101:101", "1.1.1.1%lo", "2606:4700::1%lo",
    "100::1", "localhost", "", "1", "::ffff:0:127.0.0.1",
]  # fmt: skip
PUBLIC = [
    "1.1.1.1", "93.184.216.34", "100.63.255.255", "100.128.0.1", "172.32.0.1", "2606:4700::1",
    "::ffff:1.1.1.1", "64:ff9b::101:101", "2002:101:101::", "2606:4700::5efe:101:101",
    "2001:4860:4860::8888",
]  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses(address):
    """Private, local, shared, reserved and disguised addresses are not public (O-SEC-02)."""
    assert not is_public_address(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses(address):
    """Ordinary addresses are public, also inside IPv6."""
    assert is_public_address(address)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://h/a.png?token=abc123", "http://h/a.png?..."),
        ("http://u:secret@h:8/a#f", "http://h:8/a"),
        ("data:image/png;base64,AAAA", "a data: address"),
        ("DATA:,x", "a data: address"),
        ("/etc/passwd?x=1", "/etc/passwd?..."),
        ("http://[bad/?token=abc123", "http://[bad/"),
        ("http://h/\x1b[31m", "http://h/.[31m"),
    ],
)
def test_shown_addresses_hide_secrets(url, shown):
    """Queries, credentials, payloads and control characters are not shown (O-SEC-07)."""
    assert shown == shown_url(url)


def test_shown_addresses_are_short():
    """However long an address is, at most about 100 characters of it are shown."""
    for length in (10, 1000, 10**7):
        assert len(shown_url("http://h/" + "a" * length + "?" + "b" * length)) <= 104
        assert len(shown_url("x" * length)) <= 100
