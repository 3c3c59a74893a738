"""How the command line names a side."""

from __future__ import annotations

import pytest

from mmserve.cli.sides import read_side
from mmserve.core import BadRequest


def test_an_address_alone_is_an_endpoint() -> None:
    """Asked greedily, with the command's length."""
    side = read_side("--a", "http://127.0.0.1:8000/v1", 7)
    assert (side.url, side.label) == ("http://127.0.0.1:8000/v1",) * 2
    assert (side.manner.temperature, side.manner.seed, side.manner.max_tokens) == (0, None, 7)


def test_settings_are_read_as_the_flags_of_serve() -> None:
    """Names may have dashes, switches are on or off, quotes keep a comma."""
    side = read_side("--a", 'model=m,chunk-tokens=64,radix_cache=off,system="a, b",seed=3', 7)
    assert (side.config.model, side.config.sched.chunk_tokens) == ("m", 64)
    assert not side.config.sched.radix_cache
    assert (side.manner.system, side.manner.seed) == ("a, b", 3)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("", "empty"),
        ("nonsense", "neither an address nor name=value"),
        ("model=a,model=b", "names model twice"),
        ("chunk=4", "did you mean chunk_tokens"),
        ("chunk_tokens=0", "chunk-tokens"),
        ("radix_cache=maybe", "on or off"),
        ("http://x,chunk_tokens=4", "no setting of an endpoint"),
        ("model=a,temperature=warm", "no numbers"),
        ('system="open', "quotation mark"),
    ],
)
def test_words_that_name_no_side_are_wrong_use(words: str, reason: str) -> None:
    """The flag is named, and the way out."""
    with pytest.raises(BadRequest) as caught:
        read_side("--b", words, 7)
    assert "--b" in str(caught.value)
    assert reason in str(caught.value)
