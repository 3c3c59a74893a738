"""The ledger of encoded media as people see it: how full it is, and what is in it."""

from __future__ import annotations

from typing import Literal

from mmserve.core.svg import PALE, WIDTH, Canvas, Paint
from mmserve.vision.ledger import FeatureLedger

__all__ = ["draw_ledger"]

_MAX_SHOWN = 40
_LEFT, _TOP, _ROW = 20.0, 64.0, 20.0
_IDENTITY_WIDTH, _BAR_LEFT = 260.0, 300.0
_PINNED = Paint("#bcd9f5", "#2b6cb0")
_KEPT = Paint("#f4dfb6", "#9a6700")


def draw_ledger(ledger: FeatureLedger, form: Literal["text", "svg"] = "text") -> str:
    """Encoded items, used last first, at most 40 of them. Pure."""
    return _text(ledger) if form == "text" else _picture(ledger)


def _rows(ledger: FeatureLedger) -> list[tuple[str, int, int]]:
    """Identity, tokens and pins of each item, used last first."""
    pins = ledger.pins()
    sizes = ledger.sizes()
    return [(d.hex(), num, pins.get(d, 0)) for d, num in reversed(sizes.items())]


def _headline(ledger: FeatureLedger) -> str:
    return (
        f"encoded media: {len(ledger):,} items, {ledger.num_tokens:,} of "
        f"{ledger.capacity_tokens:,} tokens, {ledger.num_pinned_tokens:,} pinned"
    )


def _text(ledger: FeatureLedger) -> str:
    lines = [_headline(ledger)]
    rows = _rows(ledger)
    if rows:
        lines += ["", f"{'identity':<34}{'tokens':>9}{'pins':>6}"]
    lines += [f"{name:<34}{num:>9,}{pins or '':>6}" for name, num, pins in rows[:_MAX_SHOWN]]
    if len(rows) > _MAX_SHOWN:
        lines.append(f"... {len(rows) - _MAX_SHOWN:,} more")
    return "\n".join(line.rstrip() for line in lines)


def _picture(ledger: FeatureLedger) -> str:
    canvas = Canvas("Encoded media")
    canvas.words(_LEFT, 20, _headline(ledger), size=15, is_bold=True)
    canvas.legend(_LEFT, 44, [("pinned: a request needs it", _PINNED), ("kept", _KEPT)])
    rows = _rows(ledger)[:_MAX_SHOWN]
    most = max((num for _, num, _ in rows), default=1)
    room = WIDTH - _BAR_LEFT - 120
    for place, (name, num, pins) in enumerate(rows):
        y = _TOP + place * _ROW
        width = room * num / most
        canvas.words(_LEFT, y + _ROW / 2, name, size=11, colour=PALE)
        title = f"{name}: {num:,} tokens, {pins} pins"
        canvas.box(_BAR_LEFT, y + 3, width, _ROW - 6, _PINNED if pins else _KEPT, title)
        canvas.words(_BAR_LEFT + width + 6, y + _ROW / 2, f"{num:,}", size=11)
    return canvas.finish(_TOP + len(rows) * _ROW + 16)
