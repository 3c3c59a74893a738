"""What a program has said, the plain way: prompts, ids, messages, answers and choices.

Written apart from the language and from its fake engine, so that both can be checked by it.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass, field, replace

from mmserve.testing.fake_client import fake_logprob
from support.programs.tree import Clip, Gen, Photo, Pick, Raw, Text

__all__ = ["Content", "Said", "answers", "chosen"]

BOS, EOS, IMAGE, FIRST_PIECE = 256, 257, 258, 300

Piece = Text | Raw | Photo | Clip


@dataclass(slots=True)
class Said:
    """Pieces outside all turns (`role` None) or one turn. Mutable."""

    role: str | None
    pieces: list[Piece] = field(default_factory=list)
    is_open: bool = False


class Content:
    """Turns and loose pieces in order. Mutable."""

    def __init__(self) -> None:
        self.said: list[Said] = []

    def copy(self) -> Content:
        """An independent content that is equal. Pure."""
        twin = Content()
        twin.said = [replace(said, pieces=list(said.pieces)) for said in self.said]
        return twin

    def add(self, piece: Piece) -> None:
        """Append to the open turn, or outside all turns. Changes: the content."""
        if isinstance(piece, (Text, Raw)) and not piece.text:
            return
        last = self.said[-1] if self.said else None
        if last is None or not (last.is_open or last.role is None):
            last = Said(None)
            self.said.append(last)
        last.pieces.append(piece)

    def begin(self, role: str) -> None:
        """Open a turn. Changes: the content."""
        self.said.append(Said(role, is_open=True))

    def end(self) -> None:
        """Close the open turn. Changes: the content."""
        self.said[-1].is_open = False

    def prompt(self) -> str:
        """What the fake engine is asked, as text. Pure."""
        return "<s>" + "".join(
            item if isinstance(item, str) else f"[{item[0]}]" for item in self._flat()
        )

    def ids(self) -> list[int]:
        """Token ids of the prompt: one per byte of text, five per picture or clip. Pure."""
        ids = [BOS]
        for item in self._flat():
            if isinstance(item, str):
                ids.extend(item.encode())
            else:
                ids += [IMAGE] * 4 + [int(item[1], 16) % 1000 + FIRST_PIECE]
        return ids

    def messages(self) -> list[dict[str, object]]:
        """Turns in OpenAI form. Pure."""
        return [
            {"role": said.role, "content": _message(said.pieces)}
            for said in self.said
            if said.role is not None
        ]

    def _flat(self) -> list[str | tuple[str, str]]:
        items: list[str | tuple[str, str]] = []
        for said in self.said:
            if said.role is not None:
                items.append(f"[{said.role}]")
            items.extend(_shown(piece) for piece in said.pieces)
            if said.role is not None and not said.is_open:
                items.append(f"[/{said.role}]")
        return items


def _shown(piece: Piece) -> str | tuple[str, str]:
    match piece:
        case Text(text) | Raw(text):
            return text
        case Photo(content):
            digest = _digest(content)
            return f"image:{digest}", digest
        case Clip(frames, num_frames):
            digest = _digest(b"".join(frames))
            return f"video:{digest}:{num_frames}", digest


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:4]


def _message(pieces: list[Piece]) -> object:
    if all(isinstance(piece, (Text, Raw)) for piece in pieces):
        return "".join(piece.text for piece in pieces if isinstance(piece, (Text, Raw)))
    parts: list[dict[str, object]] = []
    last: type | None = None
    for piece in pieces:
        if isinstance(piece, (Text, Raw)):
            if last is type(piece):
                parts[-1] = {"type": "text", "text": f"{parts[-1]['text']}{piece.text}"}
            else:
                parts.append({"type": "text", "text": piece.text})
        elif isinstance(piece, Photo):
            parts.append({"type": "image_url", "image_url": {"url": _url(piece.content)}})
        else:
            frames = [_url(frame) for frame in piece.frames]
            parts.append({"type": "video_url", "video_url": {"frames": frames, "fps": 1.0}})
        last = type(piece)
    return parts


def _url(content: bytes) -> str:
    encoded = base64.b64encode(content).decode()
    return f"data:application/octet-stream;base64,{encoded}"


# -- answers and choices ---------------------------------------------------------------------


def answers(prompt: str, gen: Gen) -> list[tuple[str, dict[str, object]]]:
    """Texts of a gen, each with the reason of its end. Pure."""
    whole = hashlib.sha256(prompt.encode()).hexdigest()[:8]
    return [_ended(whole + (str(k) if k else ""), gen) for k in range(gen.n or 1)]


def _ended(text: str, gen: Gen) -> tuple[str, dict[str, object]]:
    limit = 128 if gen.max_tokens is None else gen.max_tokens
    for end in range(1, min(limit, len(text)) + 1):
        said = text[:end]
        found = [(end - len(stop), stop) for stop in gen.stop if said.endswith(stop)]
        match = re.search(gen.stop_regex, said) if gen.stop_regex is not None else None
        if gen.stop_regex is not None and match is not None:
            found.append((match.start(), gen.stop_regex))
        if found:
            start, stop = min(found)
            return text[:start], {"type": "stop", "matched": stop}
    if limit < len(text) or not limit:
        return text[:limit], {"type": "length", "length": limit}
    return text, {"type": "stop", "matched": EOS}


def chosen(ids: list[int], pick: Pick) -> str:
    """The option that the rule takes after these ids. Pure."""
    rows = [_scores(ids, option) for option in pick.options]
    means = [sum(row) / len(row) for row in rows]
    order = range(len(rows))
    match pick.rule:
        case "token_length_normalized":
            best = max(order, key=lambda k: means[k])
        case "unconditional_likelihood_normalized":
            gains = []
            for row, option in zip(rows, pick.options, strict=True):
                alone = [0.0, *_scores([], option)[1:]]
                gains.append((sum(row) - sum(alone)) / len(row))
            best = max(order, key=lambda k: gains[k])
        case _:
            width = max(map(len, rows))
            padded = [
                row + [m] * (width - len(row)) for row, m in zip(rows, means, strict=True)
            ]
            best = max(order, key=lambda k: padded[k])  # column by column is the lists' order
    return pick.options[best]


def _scores(ids: list[int], option: str) -> list[float]:
    tokens = list(option.encode())
    before = [[*ids, *tokens[:k]] for k in range(len(tokens))]
    return [fake_logprob(*pair) for pair in zip(before, tokens, strict=True)]
