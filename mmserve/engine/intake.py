"""From a request to a prompt: media headers, template, limits, grammar; in worker threads."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from mmserve.constrained import GrammarCompiler, StopPatterns, compile_stops
from mmserve.core import (
    BadRequest,
    Broken,
    ContextTooLong,
    FrameReport,
    Matcher,
    MmserveError,
    ModelInfo,
    Prompt,
    PromptReport,
    Request,
    check_sampling,
)
from mmserve.prompt import PromptBuilder, media_parts
from mmserve.vision import MediaItem, MediaPlane, ResolvedMedia

__all__ = ["Intake", "MediaTimes", "Prepared", "as_ours"]

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class MediaTimes:
    """Milliseconds spent on a request's pixels so far; written by the loop as they arrive."""

    decode: float = 0.0
    preprocess: float = 0.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that can be scheduled: all that its sequences share."""

    request: Request
    prompt: Prompt
    items: dict[bytes, MediaItem]
    clips: tuple[FrameReport, ...]
    new_matcher: Callable[[], Matcher] | None
    fetch_ms: float
    stops: StopPatterns | None = None
    media_ms: MediaTimes = field(default_factory=MediaTimes)

    @property
    def report(self) -> PromptReport:
        """What the caller may know as soon as the request is accepted. Pure."""
        return PromptReport(tuple(self.prompt.token_ids.tolist()), self.clips)


class Intake:
    """Prepares requests. Safe from several threads; holds no state of its own."""

    def __init__(
        self,
        model: ModelInfo,
        builder: PromptBuilder,
        grammars: GrammarCompiler,
        plane: MediaPlane | None,
    ) -> None:
        self._model = model
        self._builder = builder
        self._grammars = grammars
        self._plane = plane

    def prepare(self, request: Request) -> Prepared:
        """Everything that can be refused is refused here, before anything is scheduled.

        Raises RequestRefused. Cost: reads headers and, for URLs, fetches; decodes no pixels.
        """
        check_sampling(request.sampling, self._model.vocab_size)
        constraint = request.sampling.constraint
        new_matcher = self._grammars.compile(constraint) if constraint is not None else None
        patterns = request.sampling.stop_patterns
        stops = compile_stops(patterns) if patterns else None
        media = self._resolve(request)
        prompt = self._builder.build(
            request.parts,
            tuple(resolved.items for resolved in media),
            namespace=request.cache_salt,
            chat_template=request.chat_template,
            add_bos=request.add_bos,
        )
        self._check_length(prompt, request)
        return Prepared(
            request=request,
            prompt=prompt,
            items={item.digest: item for resolved in media for item in resolved.items},
            clips=tuple(resolved.clip for resolved in media if resolved.clip is not None),
            new_matcher=new_matcher,
            fetch_ms=sum(resolved.fetch_ms for resolved in media),
            stops=stops,
        )

    def _resolve(self, request: Request) -> tuple[ResolvedMedia, ...]:
        parts = tuple(media_parts(request.parts))
        if not parts:
            return ()
        if self._plane is None:
            message = (
                f"model {self._model.name} takes text only, the request has {len(parts)} media"
            )
            raise BadRequest(
                message,
                field="messages",
                reason="media",
                hint="serve a model that sees pictures",
            )
        plane = self._plane
        return tuple(
            plane.resolve(part, salt=request.cache_salt, index=index)
            for index, part in enumerate(parts)
        )

    def _check_length(self, prompt: Prompt, request: Request) -> None:
        num_new = 0 if request.sampling.max_new_tokens == 0 else 1
        limit = min(self._model.context_length, self._model.num_slots)
        num_tokens = prompt.num_tokens + num_new
        if num_tokens > limit:
            media = prompt.num_image_tokens + prompt.num_video_tokens
            text = prompt.num_tokens - media
            raise ContextTooLong(
                f"the prompt has {prompt.num_tokens} tokens ({text} of text, {media} of media) "
                f"and needs {num_new} more for an answer, the limit is {limit}",
                hint="send fewer or smaller pictures, or less text"
                if media
                else "send less text",
                tokens=num_tokens,
                limit_tokens=limit,
                text_tokens=text,
                media_tokens=media,
            )
        start = request.sampling.prompt_logprobs_from
        if start is not None and start > prompt.num_tokens:
            message = (
                f"log-probabilities from {start}, the prompt has {prompt.num_tokens} tokens"
            )
            raise BadRequest(message, field="logprob_start_len", reason="range")


def as_ours(error: Exception, message: str) -> MmserveError:
    """The error if it is one of ours; else it is logged, and stands behind a Broken."""
    if isinstance(error, MmserveError):
        return error
    _log.error(message, exc_info=error)
    broken = Broken(message, hint="see the log")
    broken.__cause__ = error
    return broken
