"""Values of flags that are a name and something of its own: `--client-weights alice=2.5`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import typer

__all__ = ["PairReader"]

_KINDS: Mapping[type, tuple[str, str, str]] = {
    float: ("NUMBER", "a name and a number", "2.5"),
    int: ("WHOLE", "a name and a whole number", "1"),
    str: ("TEXT", "a name and a text that is not empty", "sk-1"),
}
"""How the second part is called, what a pair is, and an example of the second part."""


@dataclass(frozen=True, slots=True)
class PairReader:
    """Reads NAME=VALUE; `second` is the type of the value: float, int or str."""

    second: type

    @property
    def metavar(self) -> str:
        """What the help says in place of a value. Pure."""
        return f"NAME={_KINDS[self.second][0]}"

    def read(self, words: str) -> tuple[str, object]:
        """Name and value. A name may hold "=" if the value is a number, a text may. Pure.

        Raises BadParameter, which typer tells as a wrong use of the flag.
        """
        is_text = self.second is str
        name, sign, value = words.partition("=") if is_text else words.rpartition("=")
        try:
            if sign and value:
                return name, self.second(value)
        except ValueError:
            pass
        _, pair, example = _KINDS[self.second]
        given = "the value" if is_text else repr(words)  # a text may be a secret
        message = f"{given} is not {self.metavar}, {pair}. hint: for example alice={example}"
        raise typer.BadParameter(message)
