"""How pictures and clips stand in a prompt: what `vision` says of them and `prompt` writes.

pieces   ("<row>", 4, "<break>", 4, "<end>")
tokens   <row> | x x x x <break> x x x x | <end>
'-------- span ----------'           x: a feature of the encoded item
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GridPlace", "MediaLayout", "MediaStyle"]


@dataclass(frozen=True, slots=True)
class GridPlace:
    """Where an item's tokens lie, for models that count positions in time, rows and columns.

    Args:
        rows: of tokens.
        columns: of tokens; the item has rows * columns of them.
        time: steps in time from the beginning of its clip.
        is_first: whether a picture or clip begins with it; else the clip before goes on.
    """

    rows: int
    columns: int
    time: int = 0
    is_first: bool = True


@dataclass(frozen=True, slots=True)
class MediaLayout:
    """What one encoded item is in a prompt, known from its size.

    Args:
        pieces: text as a chat template would write it (control tokens count), and numbers of
            placeholder tokens that get the item's features in order; at least one number.
        grid: see there; None where a token more is a position more.
        is_atomic: whether its tokens see each other both ways.
    """

    pieces: tuple[str | int, ...]
    grid: GridPlace | None = None
    is_atomic: bool = False

    @property
    def num_features(self) -> int:
        """Features that the encoded item has. Pure."""
        return sum(piece for piece in self.pieces if isinstance(piece, int))


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaStyle:
    """How a family of models writes media into prompts.

    Args:
        image_token_id: placeholder of a picture's features.
        video_token_id: placeholder of a clip's features, if the family has clips of its own;
            else frames stand as pictures, each behind `frame_label`.
        image_text: what chat templates write in a picture's place; by default the spelling of
            the placeholder.
        video_text: the same of a clip.
        frame_label: plain text; may use `{number}`, from 1, and `{timestamp_s}`.
        has_grid_positions: whether positions count time, rows and columns, see `GridPlace`.
    """

    image_token_id: int
    video_token_id: int | None = None
    image_text: str | None = None
    video_text: str | None = None
    frame_label: str = "frame {number}:"
    has_grid_positions: bool = False
