"""Prompts of the kept groups, looked at; what they tell is scaled to the whole plan.

in all      = tokens a question * questions
with sharing = beginning common to all groups + (tree of a group - that) * groups
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmserve.batch.asks import request_of
from mmserve.batch.forecast.sharing import (
    Interner,
    Keys,
    least_tokens,
    prompt_keys,
)
from mmserve.batch.forecast.survey import KeptGroup, Survey
from mmserve.batch.looking import Renderer
from mmserve.batch.settings import AskSettings
from mmserve.core import PromptLook, RequestRefused
from mmserve.core.beginnings import common_length

__all__ = ["Measured", "measure"]

_MAX_REFUSED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Tokens of the plan's prompts.

    Args:
        groups, questions: looked at, without the refused ones.
        prompt_tokens: of all answers' prompts.
        least_tokens: that must be computed if no beginning is computed twice.
        frames: of all clips, each once.
        is_exact: whether every question was looked at; else counts are scaled.
        num_refused: questions looked at that would be refused.
        refused: (line, message) of the first of them.
    """

    groups: int
    questions: int
    prompt_tokens: int
    least_tokens: int
    frames: int
    is_exact: bool
    num_refused: int
    refused: tuple[tuple[int, str], ...]


@dataclass(slots=True)
class _Seen:
    """A group's prompts, and frames of its media."""

    prompts: list[Keys]
    answers: int
    frames: int
    num_questions: int

    @property
    def tokens(self) -> float:
        """Of all its answers' prompts; questions not looked at are like those that were."""
        return sum(map(len, self.prompts)) * self.answers / len(self.prompts)

    def tree(self) -> float:
        """Nodes of its prefix tree; further questions add as many as those looked at."""
        nodes = least_tokens(self.prompts)
        if self.num_questions <= len(self.prompts) or len(self.prompts) < 2:
            return float(nodes)
        first = len(self.prompts[0])
        each = max(0.0, (nodes - first) / (len(self.prompts) - 1))
        return first + each * (self.num_questions - 1)


def measure(renderer: Renderer, survey: Survey, settings: AskSettings) -> Measured:
    """Look at the kept groups' prompts. Cost: decodes media once for each question looked at.

    Raises BackendFailed if nobody can look.
    """
    media, seen = Interner(), []
    refused: list[tuple[int, str]] = []
    for group in survey.kept:
        found = _look(renderer, group, settings, media, refused)
        if found.prompts:
            seen.append(found)
    questions = sum(len(found.prompts) for found in seen)
    is_exact = questions + len(refused) == survey.questions
    groups = survey.groups * len(seen) / max(1, len(survey.kept))
    return Measured(
        groups=len(seen),
        questions=questions,
        prompt_tokens=round(_in_all(seen, survey.answers, is_exact=is_exact)),
        least_tokens=round(_shared(seen, groups)),
        frames=round(sum(found.frames for found in seen) * groups / max(1, len(seen))),
        is_exact=is_exact,
        num_refused=len(refused),
        refused=tuple(refused[:_MAX_REFUSED]),
    )


def _look(
    renderer: Renderer,
    group: KeptGroup,
    settings: AskSettings,
    media: Interner,
    refused: list[tuple[int, str]],
) -> _Seen:
    """Changes: `media`, `refused`."""
    found = _Seen([], 0, 0, group.num_questions)
    for row, index in group.asked:
        try:
            look = renderer.render(request_of(row, index, settings))
        except RequestRefused as error:
            refused.append((row.line, error.message))
            continue
        found.prompts.append(prompt_keys(look, media))
        found.answers += row.num_samples
        found.frames = max(found.frames, _num_frames(look))
    rest = max(0, group.num_questions - len(group.asked))
    if found.prompts:
        found.answers += round(rest * found.answers / len(found.prompts))
    return found


def _num_frames(look: PromptLook) -> int:
    """Frames taken of clips. Pure."""
    return sum(len(clip.timestamps_s) for clip in look.clips)


def _in_all(seen: Sequence[_Seen], answers: int, *, is_exact: bool) -> float:
    tokens = sum(found.tokens for found in seen)
    known = sum(found.answers for found in seen)
    return tokens if is_exact or not known else tokens * answers / known


def _shared(seen: Sequence[_Seen], groups: float) -> float:
    if not seen:
        return 0.0
    if groups <= len(seen) and all(f.num_questions <= len(f.prompts) for f in seen):
        return float(least_tokens([keys for found in seen for keys in found.prompts]))
    firsts = [found.prompts[0] for found in seen]
    head = min((common_length(firsts[0], other) for other in firsts[1:]), default=0)
    own = sum(found.tree() - head for found in seen)
    return head + own * groups / len(seen)
