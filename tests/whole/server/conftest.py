"""Asking the small server of the whole tests, whatever its model is called."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.oracle import Asker, Reply, png


class NamelessAsker(Asker):
    """An asker that names no model."""

    def messages(self, messages: list[dict[str, Any]], **fields: Any) -> Reply:
        """A whole conversation."""
        return super().messages(messages, **{"model": None, **fields})


@pytest.fixture
def ask(server_url: str) -> Iterator[NamelessAsker]:
    """A client that asks for greedy answers with log-probabilities."""
    asker = NamelessAsker(server_url)
    yield asker
    asker.close()


def picture(seed: int) -> bytes:
    """A picture of coarse random blocks."""
    blocks = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return png(Image.fromarray(blocks).resize((56, 56), Image.Resampling.NEAREST))


@pytest.fixture(scope="session")
def pictures() -> tuple[bytes, bytes]:
    """Two pictures that differ everywhere."""
    return picture(1), picture(2)
