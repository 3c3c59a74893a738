"""The room's inner port: what an engine for grammars has to know of one answer's text."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Parser"]


class Parser(Protocol):
    """How far a text has come in its grammar. Mutable; `fork` before sharing."""

    def allowed(self) -> NDArray[np.uint32]:
        """Bitmask uint32 [W] of text tokens that may come next; not to be written. Pure.

        Raises ConstraintRefused if that is too complex to say.
        """
        ...

    def consume(self, token_id: int) -> bool:
        """Move on by one text token; False, and nothing changes, if it may not come.

        Changes: the state. Raises ConstraintRefused if what may follow is too complex to say;
        the parser is of no use then.
        """
        ...

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens consumed. Changes: the state."""
        ...

    def forced(self) -> bytes:
        """Bytes that are certain to come next, as far as known; often empty. Pure."""
        ...

    def follow(self) -> bytes | None:
        """Bytes that a next token may begin with, sorted; None if that is dear to say. Pure."""
        ...

    def fork(self) -> Parser:
        """An independent copy. Pure."""
        ...

    @property
    def is_accepting(self) -> bool:
        """Whether the text may end here."""
        ...

    @property
    def is_final(self) -> bool:
        """Whether it may end here, and nothing may follow."""
        ...
