"""How SmolVLM writes clips: their length in words, then each frame behind its time.

    You are provided the following series of two frames from a 0:00:01 [H:MM:SS] video.

    Frame from 00:00:<fake><global-img>x x x<fake>
    Frame from 00:01:<fake><global-img>x x x<fake>

Source: processor of SmolVLM in transformers 5. Frames that came one by one are taken for a clip
that ends with the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

from mmserve.vision.processor import FrameFacts

__all__ = ["frame_labels", "in_words"]

_SMALL = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen"),
    *("eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_GROUPS = ((1_000_000, "million"), (1000, "thousand"), (100, "hundred"))


def frame_labels(frames: Sequence[FrameFacts]) -> Iterator[str]:
    """What stands before each frame of a clip, in order. Pure."""
    last = frames[-1]
    length = timedelta(seconds=int(last.time if last.duration is None else last.duration))
    before = (
        f"You are provided the following series of {in_words(len(frames))} frames "
        f"from a {length} [H:MM:SS] video.\n"
    )
    for frame in frames:
        minutes, seconds = divmod(int(frame.time), 60)
        yield f"{before}\nFrame from {minutes:02d}:{seconds:02d}:"
        before = ""


def in_words(number: int) -> str:
    """A whole number from 0 in British words: "one hundred and twenty-three". Pure."""
    if number < len(_SMALL):
        return _SMALL[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _TENS[tens - 2] + (f"-{_SMALL[ones]}" if ones else "")
    size, name = next(group for group in _GROUPS if number >= group[0])
    many, rest = divmod(number, size)
    words = f"{in_words(many)} {name}"
    if not rest:
        return words
    return f"{words}{' and ' if rest < 100 else ', '}{in_words(rest)}"
