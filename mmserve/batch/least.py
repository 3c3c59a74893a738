"""The least tokens of a run under way, where its answers tell their prompts."""

from __future__ import annotations

from collections import Counter

from mmserve.batch.asker import Asker
from mmserve.batch.elsewhere import Elsewhere
from mmserve.batch.job import LeastTokens, told_apart
from mmserve.batch.records import Answer
from mmserve.core import MmserveError, Request

__all__ = ["LeastCount"]


class LeastCount:
    """Takes prompts in as their requests end; lets a group go when nothing more comes of it.

    Rows of a group follow each other, so a group is over once another has begun and none of
    its requests is under way. Mutable.

    Args:
        client: an engine of this process tells the tokens of its prompts; others do not.
    """

    def __init__(self, client: Asker | Elsewhere) -> None:
        model = getattr(client, "model", None)
        names = ("image_token_id", "video_token_id")
        found = (getattr(model, name, None) for name in names)
        self._placeholder_ids = frozenset(one for one in found if one is not None)
        self._is_known = bool(self._placeholder_ids)
        self._tokens = LeastTokens()
        self._under_way: Counter[bytes] = Counter()
        self._newest = b""

    def begin(self, group_id: bytes) -> None:
        """A request of this group is under way. Changes: the count."""
        before, self._newest = self._newest, group_id
        self._under_way[group_id] += 1
        self._forget(before)

    def end(self, group_id: bytes) -> None:
        """One of its requests is over, and what follows it has begun. Changes: the count."""
        self._under_way[group_id] -= 1
        self._forget(group_id)

    def add(
        self, group_id: bytes, request: Request, fates: tuple[Answer | MmserveError, ...]
    ) -> int | None:
        """The least tokens with this request's; None if they are not known."""
        answers = [fate for fate in fates if isinstance(fate, Answer)]
        if not self._is_known:
            return None
        if answers:
            report = answers[0].report
            self._is_known = bool(report.token_ids)
            self._tokens.add(group_id, *told_apart(request, report, self._placeholder_ids))
            self._tokens.add_again(len(answers) - 1)
        return self._tokens.total_tokens if self._is_known else None

    def _forget(self, group_id: bytes) -> None:
        if group_id != self._newest and self._under_way[group_id] <= 0:
            del self._under_way[group_id]
            self._tokens.forget(group_id)
