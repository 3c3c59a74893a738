"""Where a program's end stands when something is appended: in which turn, after what."""

from __future__ import annotations

from dataclasses import dataclass

from mmserve.core import ImagePart, ProgramMisuse, RawPart, TextPart, VideoPart
from mmserve.lang.ir import Gen, Hole, Prepared, RoleBegin, RoleEnd, Select

__all__ = ["Place"]


@dataclass(frozen=True, slots=True)
class Place:
    """The open turn's role, its calls so far, and whether it has any content.

    `role` is None outside turns; `gens` and `has_content` are then of the untemplated text.
    """

    role: str | None = None
    gens: tuple[Gen, ...] = ()
    has_content: bool = False

    def after(self, node: Prepared) -> Place:
        """The place behind `node`.

        Raises ProgramMisuse for a turn inside a turn, for the end of a turn that is not open,
        and for an unknown value. Pure.
        """
        match node:
            case RoleBegin(role) if self.role is not None:
                message = f"a turn of {role} begins inside a turn of {self.role}"
                raise ProgramMisuse(message, hint="close the open turn first")
            case RoleBegin(role):
                return Place(role)
            case RoleEnd(role) if self.role != role:
                message = f"a {role} turn ends, but {self.role or 'no'} turn is open"
                raise ProgramMisuse(message)
            case RoleEnd():
                return Place()
            case Hole(name):
                message = f"{name!r} is unknown while a program is traced, but this one runs"
                raise ProgramMisuse(message)
            case Gen():
                return Place(self.role, (*self.gens, node), has_content=True)
            case TextPart() | RawPart() | ImagePart() | VideoPart() | Select():
                return Place(self.role, self.gens, has_content=True)
        return self
