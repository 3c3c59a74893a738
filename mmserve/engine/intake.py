"""From a request to a prompt: its grammar, then media headers, template and limits.

begin   in the caller's thread: sampling values; the grammar is asked for
finish  in a worker thread, once the grammar is there: media, prompt, length
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import numpy as np

from mmserve.constrained import CompilePool, NewMatcher, StopPatterns, compile_stops
from mmserve.core import (
    BadRequest,
    Broken,
    ContextTooLong,
    FrameReport,
    MmserveError,
    ModelInfo,
    Prompt,
    PromptReport,
    Request,
    check_sampling,
)
from mmserve.engine.healing import PromptHealer
from mmserve.engine.options import OptionTree, check_options, tree_of
from mmserve.prompt import (
    OptionTokens,
    PromptBuilder,
    Rendered,
    longer,
    media_parts,
    with_text,
)
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
    new_matcher: NewMatcher | None
    fetch_ms: float
    stops: StopPatterns | None = None
    num_healed_bytes: int = 0
    """Bytes at the start of the answer's tokens that the prompt's text ends with."""
    media_ms: MediaTimes = field(default_factory=MediaTimes)
    tree: OptionTree | None = None
    """Of the request's options."""
    options: tuple[Prepared, ...] = ()
    """The prompt with each of them behind it."""
    num_before: int = 0
    """Tokens before the options, in an option's own prompt too."""
    rivals: tuple[tuple[int, int], ...] = ()
    """What the sequence scores beside its own tokens, see `sched.SequenceSpec`."""

    @property
    def report(self) -> PromptReport:
        """What the caller may know as soon as the request is accepted. Pure."""
        options = () if self.tree is None else self.tree.options
        return PromptReport(tuple(self.prompt.token_ids.tolist()), self.clips, options)


class Intake:
    """Prepares requests. Safe from several threads; holds no state of its own."""

    def __init__(
        self,
        model: ModelInfo,
        builder: PromptBuilder,
        grammars: CompilePool,
        plane: MediaPlane | None,
        healer: PromptHealer,
    ) -> None:
        self._model = model
        self._builder = builder
        self._grammars = grammars
        self._plane = plane
        self._healer = healer

    def begin(self, request: Request) -> Future[NewMatcher] | None:
        """Check sampling and options and ask for the grammar; None if the request has none.

        Raises BadRequest. The future fails as those of `CompilePool.request`.
        """
        check_sampling(request.sampling, self._model.vocab_size)
        check_options(request)
        constraint = request.sampling.constraint
        return None if constraint is None else self._grammars.request(constraint)

    def finish(self, request: Request, new_matcher: NewMatcher | None) -> Prepared:
        """All that can still be refused is refused here, before anything is scheduled.

        Raises RequestRefused. Cost: reads headers and, for URLs, fetches; decodes no pixels.
        """
        patterns = request.sampling.stop_patterns
        stops = compile_stops(patterns) if patterns else None
        media = self._resolve(request)
        rendered = self._render(request, media)
        prompt, healed = rendered.prompt, b""
        if request.sampling.heal_prompt and request.sampling.max_new_tokens != 0:
            prompt, healed = self._healer.take_back(prompt, request.parts)
        if healed:
            new_matcher = self._healer.matcher(request.sampling.constraint, healed)
        self._check_length(prompt, request)
        prepared = Prepared(
            request=request,
            prompt=prompt,
            items={item.digest: item for resolved in media for item in resolved.items},
            clips=tuple(resolved.clip for resolved in media if resolved.clip is not None),
            new_matcher=new_matcher,
            fetch_ms=sum(resolved.fetch_ms for resolved in media),
            stops=stops,
            num_healed_bytes=len(healed),
        )
        return self._with_options(prepared, rendered, media) if request.options else prepared

    def _render(self, request: Request, media: tuple[ResolvedMedia, ...]) -> Rendered:
        return self._builder.render(
            request.parts,
            tuple(resolved.items for resolved in media),
            namespace=request.cache_salt,
            chat_template=request.chat_template,
            add_bos=request.add_bos,
            tools=request.tools,
        )

    def _with_options(
        self, prepared: Prepared, rendered: Rendered, media: tuple[ResolvedMedia, ...]
    ) -> Prepared:
        """The request with all its options, each a prompt of its own."""
        request, num_before = prepared.request, prepared.prompt.num_tokens
        goes_on = self._builder.goes_on_behind(
            request.parts, chat_template=request.chat_template, tools=request.tools
        )

        def render_with(option: str) -> Prompt:
            parts = with_text(request.parts, option)
            return self._render(replace(request, parts=parts), media).prompt

        tokens = OptionTokens(
            self._builder.tokenizer, rendered, None if goes_on else render_with
        )
        tree = tree_of(map(tokens.ids, request.options))
        rivals = [
            tuple((num_before + offset, token_id) for offset, token_id in some)
            for some in tree.rivals
        ]
        base = replace(prepared, tree=tree, num_before=num_before, rivals=rivals[0])
        options = tuple(
            self._option(base, place, rivals[place + 1]) for place in range(len(tree.options))
        )
        return replace(base, options=options)

    def _option(
        self, base: Prepared, place: int, rivals: tuple[tuple[int, int], ...]
    ) -> Prepared:
        """One option behind the prompt. Raises what it is refused with."""
        tree, prompt = base.tree, base.prompt
        if tree is None or not tree.options[place]:
            message = f"option {place} has no tokens"
            raise BadRequest(message, field="options", reason="empty", position=place)
        sampling = replace(
            base.request.sampling,
            return_logprobs=True,
            prompt_logprobs_from=base.num_before + tree.first_own(place),
        )
        request = replace(base.request, sampling=sampling)
        ids = np.asarray(tree.options[place], dtype=np.int64)
        prompt = longer(prompt, ids)
        self._check_length(prompt, request, f"the prompt with option {place}")
        return replace(base, request=request, prompt=prompt, rivals=rivals)

    def prepare(self, request: Request) -> Prepared:
        """`begin` and `finish` in one call, which waits for the grammar."""
        grammar = self.begin(request)
        return self.finish(request, None if grammar is None else grammar.result())

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

    def _check_length(self, prompt: Prompt, request: Request, what: str = "the prompt") -> None:
        num_new = 0 if request.sampling.max_new_tokens == 0 else 1
        limit = min(self._model.context_length, self._model.num_slots)
        num_tokens = prompt.num_tokens + num_new
        if num_tokens > limit:
            media = prompt.num_image_tokens + prompt.num_video_tokens
            text = prompt.num_tokens - media
            raise ContextTooLong(
                f"{what} has {prompt.num_tokens} tokens ({text} of text, {media} of media) "
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


def as_ours(error: BaseException, message: str) -> MmserveError:
    """The error if it is one of ours; else it is logged, and stands behind a Broken."""
    if isinstance(error, MmserveError):
        return error
    _log.error(message, exc_info=error)
    broken = Broken(message, hint="see the log")
    broken.__cause__ = error
    return broken
