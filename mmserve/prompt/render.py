"""Parts of a request to one Prompt: token ids with media spans in place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Literal

import numpy as np

from mmserve.core import (
    BadRequest,
    ImagePart,
    MediaRefused,
    MediaStyle,
    Part,
    Prompt,
    RawPart,
    TextPart,
    TokensPart,
    Turn,
    VideoPart,
)
from mmserve.prompt.assembly import Assembly
from mmserve.prompt.conversation import Conversations
from mmserve.prompt.options import Rendered
from mmserve.prompt.positions import placed
from mmserve.prompt.styles import MediaItem, PictureStyle, Slot
from mmserve.prompt.template import ChatTemplate
from mmserve.prompt.tokenizer import Stretch, Tokenizer, check_text

__all__ = ["PromptBuilder", "media_parts"]

_MAX_TEMPLATES = 32


def media_parts(parts: Iterable[Part]) -> Iterator[ImagePart | VideoPart]:
    """Pictures and clips in order of appearance, inside turns too. Pure."""
    for part in parts:
        if isinstance(part, Turn):
            yield from media_parts(part.parts)
        elif isinstance(part, ImagePart | VideoPart):
            yield part


class PromptBuilder:
    """Builds prompts for one model.

    Args:
        tokenizer: the model's vocabulary.
        template: its own chat template, or None.
        media: how the model's family writes pictures and clips; None for a text-only model.
        picture_style: what stands around a picture outside of templates; None: what the
            template writes around one between two texts.

    Safe to use from any thread. Changes: templates compiled for requests that bring their own.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None = None,
        *,
        media: MediaStyle | None = None,
        picture_style: PictureStyle | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._media = media
        self._placeholders = {} if media is None else _placeholders(tokenizer, media)
        names = (tokenizer.special_tokens.get(f"{kind}_token") for kind in ("image", "video"))
        self._reserved = sorted({*self._placeholders, *filter(None, names)}, key=len)[::-1]
        self._own = None if template is None else self._conversations(template)
        if picture_style is None and self._own is not None:
            picture_style = self._own.picture_style
        self._picture_style = picture_style or PictureStyle()
        self._brought: dict[str, Conversations] = {}

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's vocabulary."""
        return self._tokenizer

    @property
    def image_spelling(self) -> str | None:
        """The model's own placeholder for a picture, as text; None for a text-only model."""
        if self._media is None:
            return None
        return self._media.image_text or self._tokenizer.spelling(self._media.image_token_id)

    def build(
        self,
        parts: Sequence[Part],
        media: Sequence[Sequence[MediaItem]] = (),
        *,
        namespace: str = "",
        chat_template: str | None = None,
        add_bos: Literal["auto", "never"] = "auto",
        tools: Sequence[str] = (),
    ) -> Prompt:
        """The prompt of a request.

        Args:
            parts: as in `Request.parts`.
            media: one entry per picture or clip in order of appearance: its spans (one for a
                picture, one per frame or group of frames for a clip).
            namespace: goes into the prompt as it is.
            chat_template: Jinja text to use instead of the model's own.
            add_bos: "auto" puts the tokenizer's BOS first where it belongs and is not there.
            tools: definitions for the first conversation, see `Request.tools`.

        Returns:
            Token ids with at most one BOS at the beginning, spans in order.

        Raises:
            BadRequest: nothing to render, no chat template, or text that cannot be served.
            MediaRefused: the model does not see pictures.

        Pure.
        """
        return self.render(
            parts,
            media,
            namespace=namespace,
            chat_template=chat_template,
            add_bos=add_bos,
            tools=tools,
        ).prompt

    def goes_on_behind(
        self,
        parts: Sequence[Part],
        *,
        chat_template: str | None = None,
        tools: Sequence[str] = (),
    ) -> bool:
        """Whether the prompt with any text put at its end is the prompt and that text.

        Otherwise the last turn is open, and its template may write more. Raises as `build`.
        """
        last = parts[-1]
        if not (isinstance(last, Turn) and last.is_open):
            return True
        runs = [tuple(run) for _, run in groupby(parts, key=lambda p: isinstance(p, Turn))]
        turns = [part for part in runs[-1] if isinstance(part, Turn)]
        is_first = all(not isinstance(run[0], Turn) for run in runs[:-1])
        talk = self._for_turns(chat_template)
        return talk.goes_on_behind(turns, tools if is_first else ())

    def render(
        self,
        parts: Sequence[Part],
        media: Sequence[Sequence[MediaItem]] = (),
        *,
        namespace: str = "",
        chat_template: str | None = None,
        add_bos: Literal["auto", "never"] = "auto",
        tools: Sequence[str] = (),
    ) -> Rendered:
        """The prompt of a request and the text it ends with; see `build`. Pure."""
        self._check(parts, media)
        assembly = Assembly(self._tokenizer, media, self._media, self._picture_style)
        index = 0
        for is_turn, group in groupby(parts, key=lambda part: isinstance(part, Turn)):
            some = tuple(group)
            pieces: list[Stretch | Slot | TokensPart]
            if is_turn:
                turns = [part for part in some if isinstance(part, Turn)]
                rendered = self._for_turns(chat_template).render(turns, index, tools)
                tools = ()
                pieces = [*(rendered if assembly.is_empty else self._without_bos(rendered))]
            else:
                pieces = list(self._bare_pieces(some, index))
            for piece in pieces:
                assembly.add(piece)
            index += sum(1 for _ in media_parts(some))
        assembly.flush()
        self._settle_bos(assembly, parts[0], add_bos)
        if not assembly.ids:
            raise BadRequest("the prompt is empty", field="messages", reason="empty")
        ids = np.asarray(assembly.ids, dtype=np.int64)
        prompt = Prompt(ids, tuple(assembly.spans), namespace)
        if self._media is not None and self._media.has_grid_positions:
            prompt = placed(prompt)
        return Rendered(prompt, assembly.tail, assembly.is_tail_first)

    def _check(self, parts: Sequence[Part], media: Sequence[Sequence[MediaItem]]) -> None:
        if not parts:
            raise BadRequest("there are no messages", field="messages", reason="empty")
        num_media = sum(1 for _ in media_parts(parts))
        if num_media and self._media is None:
            raise MediaRefused(
                "the model does not see pictures, the request holds some",
                reason="unsupported",
                field="messages",
                hint="remove the pictures or serve a model that sees",
            )
        if num_media != len(media):
            message = f"{num_media} pictures and clips in the parts, {len(media)} resolved"
            raise BadRequest(message, field="messages", reason="media_count")

    def _for_turns(self, chat_template: str | None) -> Conversations:
        if chat_template is None:
            if self._own is None:
                raise BadRequest(
                    "the model has no chat template",
                    field="messages",
                    reason="no_template",
                    hint="give chat_template, or send the prompt as text",
                )
            return self._own
        found = self._brought.get(chat_template)
        if found is None:
            template = ChatTemplate(chat_template, self._tokenizer.special_tokens)
            found = self._conversations(template)
            if len(self._brought) >= _MAX_TEMPLATES:
                self._brought.clear()
            self._brought[chat_template] = found
        return found

    def _conversations(self, template: ChatTemplate) -> Conversations:
        return Conversations(
            self._tokenizer, template, placeholders=self._placeholders, reserved=self._reserved
        )

    def _raw(self, text: str) -> Iterator[Stretch]:
        """Template text outside of turns; media placeholders in it are plain text."""
        pieces = re.split(f"({'|'.join(map(re.escape, self._reserved))})", text)
        for order, piece in enumerate(pieces if self._reserved else [text]):
            yield Stretch(piece, is_template=order % 2 == 0)

    def _bare_pieces(
        self, parts: Iterable[Part], index: int
    ) -> Iterator[Stretch | Slot | TokensPart]:
        """Parts outside of turns as they are."""
        for part in parts:
            if isinstance(part, TextPart):
                yield Stretch(check_text(part.text, "text"))
            elif isinstance(part, RawPart):
                yield from self._raw(check_text(part.text, "text"))
            elif isinstance(part, TokensPart):
                yield part
            elif isinstance(part, ImagePart | VideoPart):
                yield Slot(index)
                index += 1

    def _without_bos(self, pieces: list[Stretch | Slot]) -> list[Stretch | Slot]:
        """A conversation's pieces without the BOS its template begins with."""
        bos = self._tokenizer.special_tokens.get("bos_token", "")
        first = pieces[0] if pieces else None
        if bos and isinstance(first, Stretch) and first.is_template:
            return [Stretch(first.text.removeprefix(bos), is_template=True), *pieces[1:]]
        return pieces

    def _settle_bos(self, assembly: Assembly, first: Part, add_bos: str) -> None:
        """At most one BOS, and one where plain encoding would put it.

        A chat prompt of a text-only model follows its template alone, as Hugging Face's
        tokenizers do; a model with pictures also gets the tokenizer's BOS, as by its processor.
        """
        bos = self._tokenizer.bos_token_id
        if bos is None or isinstance(first, TokensPart):
            return
        while assembly.ids[:2] == [bos, bos]:
            assembly.move([], drop=1)
        is_wanted = self._tokenizer.adds_bos
        if isinstance(first, Turn) and self._media is None:
            is_wanted = False
        if add_bos == "auto" and is_wanted and assembly.ids[:1] != [bos]:
            assembly.move([bos])


def _placeholders(tokenizer: Tokenizer, media: MediaStyle) -> dict[str, str]:
    """Kind of media by what chat templates write in its place."""
    spellings = {
        "image": media.image_text or tokenizer.spelling(media.image_token_id),
        "video": media.video_text,
    }
    if media.video_text is None and media.video_token_id not in (None, media.image_token_id):
        spellings["video"] = tokenizer.spelling(media.video_token_id)
    return {spelling: kind for kind, spelling in spellings.items() if spelling}
