"""Error records by their code, each kind with a few examples."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["FaultKind", "Faults"]

_MAX_KINDS = 40
_MAX_EXAMPLES = 3
_MAX_LETTERS = 400
_REST = "other"


@dataclass(slots=True)
class FaultKind:
    """Error records of one code; `examples` are (line, message) with different messages."""

    code: str
    count: int = 0
    examples: list[tuple[int, str]] = field(default_factory=list)


class Faults:
    """Kinds of errors so far; codes beyond the first forty are counted together."""

    def __init__(self) -> None:
        self._kinds: dict[str, FaultKind] = {}

    def add(self, line: int, code: str, message: str) -> None:
        """Count one error record. Changes: the counts."""
        if code not in self._kinds and len(self._kinds) >= _MAX_KINDS:
            code = _REST
        kind = self._kinds.setdefault(code, FaultKind(code))
        kind.count += 1
        message = message.removeprefix(f"line {line}: ")  # which is told beside it
        shown = message if len(message) <= _MAX_LETTERS else f"{message[:_MAX_LETTERS]}..."
        is_new = all(shown != other for _, other in kind.examples)
        if is_new and len(kind.examples) < _MAX_EXAMPLES:
            kind.examples.append((line, shown))

    def kinds(self) -> list[FaultKind]:
        """All kinds, the most frequent first. Pure."""
        return sorted(self._kinds.values(), key=lambda kind: (-kind.count, kind.code))
