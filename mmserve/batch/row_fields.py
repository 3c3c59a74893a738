"""The fields of one row, each checked, and every fault that is found in them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mmserve.batch.values import CHECKS, CONSTRAINTS, SAMPLING, Fault, check_text, shown
from mmserve.core import Constraint

if TYPE_CHECKING:
    from mmserve.batch.templates import QuestionTemplate

__all__ = ["ASKING", "RowFields"]

ASKING = ("question", "questions", "turns")
"""Fields of which a row has one: what is asked."""


class RowFields:
    """The fields of one row, and the faults found in them so far."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields
        self._values: dict[str, Any] = {}
        self.faults: list[str] = []

    def has(self, name: str) -> bool:
        """Whether the field is there, right or wrong; null is absent. Pure."""
        return self._fields.get(name) is not None

    def read(self, name: str, check: Callable[[object], Any]) -> Any:  # noqa: ANN401
        """The checked value; None if absent or at fault. Null is absent, except for id."""
        value = self._fields.get(name)
        if value is None and not (name == "id" and name in self._fields):
            return None
        try:
            self._values[name] = check(value)
        except Fault as fault:
            self.faults.append(f"{name} {fault}")
        return self._values.get(name)

    def check_media(self) -> None:
        """A row is about a clip or pictures, not both."""
        given = [name for name in ("video", "images") if self.has(name)]
        if len(given) != 1:
            state = "video and images are both given" if given else "video is missing"
            self.faults.append(f"{state}, give video or images")

    def questions(
        self, template: QuestionTemplate | None, silent: tuple[str, ...]
    ) -> tuple[str, ...]:
        """What the row asks, the template filled in; `silent` if it asks nothing itself."""
        given = [name for name in ASKING if self.has(name)]
        if template is not None and not template.uses_question:
            return self._made_of_fields(template, given)
        if len(given) > 1:
            self.faults.append(f"{' and '.join(given)} are both given, give one of them")
            return ()
        if not given and not silent:
            self.faults.append("question is missing, give question or questions")
            return ()
        plain: tuple[str, ...] = self._values.get(given[0], ()) if given else silent
        if template is None:
            return plain
        return tuple(self._rendered(template, {"question": text}) for text in plain)

    def _made_of_fields(self, template: QuestionTemplate, given: list[str]) -> tuple[str, ...]:
        unused = [name for name in given if name not in template.names]
        if unused:
            self.faults.append(
                f"{unused[0]} is given, but the template asks without it: "
                "write {{ question }} into it"
            )
            return ()
        return (self._rendered(template, {}),)

    def _rendered(self, template: QuestionTemplate, more: Mapping[str, Any]) -> str:
        try:
            text = template.render({**self._fields, **more})
        except Fault as fault:
            self.faults.append(str(fault))
            return ""
        try:
            return check_text(text)
        except Fault as fault:
            self.faults.append(f"the question that the template makes {fault}")
            return ""

    def constraint(self) -> Constraint | None:
        """The one constraint that is given."""
        kinds = [kind for kind in CONSTRAINTS if self.has(kind)]
        if len(kinds) > 1:
            self.faults.append(f"{' and '.join(kinds)} are both given, give one")
        if len(kinds) != 1 or kinds[0] not in self._values:
            return None
        value = self._values[kinds[0]]
        if kinds[0] == "choices":
            value = json.dumps(value, ensure_ascii=False)
        return Constraint(kinds[0], value)

    def check_window(self) -> None:
        """Sampling fields belong to a clip, and its window is not empty."""
        if self.has("images"):
            for name in SAMPLING:
                if self.has(name):
                    self.faults.append(f"{name} is for a video, the row has images")
        start_s, end_s = self._values.get("start_s") or 0.0, self._values.get("end_s")
        if end_s is not None and end_s <= start_s:
            self.faults.append(
                f"end_s is {end_s:g}, must be after start_s, which is {start_s:g}"
            )

    def num_samples(self, silent: int, silent_temperature: float) -> int:
        """Answers to each question; several are a fault where all of them would be the same."""
        if "n" not in self._values and self.has("n"):
            return 1
        count = int(self._values.get("n", silent))
        if count == 1:
            return 1
        temperature = self._values.get("temperature", silent_temperature)
        if temperature == 0:
            self.faults.append(
                f"n is {count} and temperature is 0, all answers would be the same: "
                "give a temperature above 0, or n 1"
            )
        if self.has("turns"):
            self.faults.append(
                f"n is {count} and turns is given, but a conversation goes on from one "
                "answer: give n 1"
            )
        return count

    def check_unknown(self, known: frozenset[str]) -> None:
        """A field nobody reads is a fault."""
        for name in sorted(self._fields.keys() - CHECKS.keys() - known):
            names = ", ".join([*CHECKS, *sorted(known - CHECKS.keys())])
            self.faults.append(f"unknown field {shown(name)}; known are {names}")
