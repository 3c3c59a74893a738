"""Settings of a Runtime as flags of the command that it runs."""

from __future__ import annotations

import pytest

from mmserve.core import BadRequest
from mmserve.lang.runtime import Runtime, serve_flags


@pytest.mark.parametrize(
    ("name", "value", "flags"),
    [
        ("num_slots", 2048, ["--num-slots=2048"]),
        ("served_name", "--odd name", ["--served-name=--odd name"]),
        ("context_length", None, []),
        ("verify_steps", True, ["--verify-steps"]),
        ("verify_steps", False, []),
        ("radix_cache", True, []),
        ("radix_cache", False, ["--no-radix-cache"]),
        ("no_radix_cache", True, ["--no-radix-cache"]),
        ("allowed_hosts", ["a.example", "b.example"], ["--allowed-hosts=a.example"]),
        ("client_weights", {"ann": 2.0}, ["--client-weights=ann=2.0"]),
        ("client_weights", (("ann", 2.0),), ["--client-weights=ann=2.0"]),
        ("unheard_of", True, ["--unheard-of"]),
    ],
)
def test_settings_become_flags(name, value, flags):
    """Underscores become dashes, switches flags alone, lists a flag for each item."""
    assert serve_flags({name: value})[: len(flags) or None] == flags


def test_a_list_gives_all_its_items():
    """In their order."""
    flags = serve_flags({"allowed_hosts": ("a.example", "b.example")})

    assert flags == ["--allowed-hosts=a.example", "--allowed-hosts=b.example"]


@pytest.mark.parametrize("wrong", [{"log_level": "loud"}, {"model": "tabletop"}])
def test_wrong_names_and_values_start_nothing(wrong):
    """They are refused by name, at once."""
    with pytest.raises(BadRequest) as caught:
        Runtime(**wrong)

    assert caught.value.param in wrong
