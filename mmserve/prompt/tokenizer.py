"""Text to tokens with and without control tokens, tokens to exact bytes.

Text whose origin is known comes as stretches. Control tokens are only looked for inside
template stretches; what lies between two of them is tokenized as one run, whoever wrote it:

    template       user's text        template
    <|user|>       Is <|end|> a tag?  <|end|><|assistant|>
    [control]      [--- one plain run ---] [control][control]
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as Backend

from mmserve.core import BadRequest
from mmserve.prompt.token_bytes import piece_rule

__all__ = ["Stretch", "Tokenizer", "check_text", "cut_stretches"]

_MARKUP = re.compile(r"\s*(?:<.+>|\[.+\]|\(<.+>\)|\{.+\}|<\|.*|.*\|>)\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Text of one origin; only a template's text may spell control tokens."""

    text: str
    is_template: bool = False


@dataclass(frozen=True, slots=True)
class _Control:
    token_id: int
    is_special: bool
    lstrip: bool
    rstrip: bool
    is_word: bool


def check_text(text: str, field: str) -> str:
    """The text itself. Raises BadRequest if it holds half of a surrogate pair. Pure."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"{field} holds half of a surrogate pair at character {error.start}"
        hint = "send the whole character, both halves together"
        raise BadRequest(
            message, field=field, reason="surrogate", position=error.start, hint=hint
        ) from None
    return text


def cut_stretches(
    stretches: Iterable[Stretch], cut: int
) -> tuple[list[Stretch], list[Stretch]]:
    """The stretches before and behind character `cut` of their joined text. Pure."""
    first, second = [], []
    for stretch in stretches:
        place = max(0, cut)
        first.append(Stretch(stretch.text[:place], stretch.is_template))
        second.append(Stretch(stretch.text[place:], stretch.is_template))
        cut -= len(stretch.text)
    return [one for one in first if one.text], [one for one in second if one.text]


class Tokenizer:
    """A vocabulary with two readings: plain text, and template text whose control tokens count.

    Control tokens are the special tokens and those added tokens that look like markup (role
    marks, media placeholders, `<think>`). Safe to use from any thread; never changes.

    Args:
        backend: the tokenizer as its `tokenizer.json` describes it; must not change later.
        special_tokens: spelling of special tokens by role name (`bos_token`, `eos_token`,
            `image_token`); they count as special even if the backend does not say so.
        adds_bos: whether plain encoding begins with the BOS token; None asks the backend.
        chat_template: template that came with the vocabulary file, if one did.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        special_tokens: Mapping[str, str] | None = None,
        adds_bos: bool | None = None,
        chat_template: str | None = None,
    ) -> None:
        self.special_tokens = dict(special_tokens or {})
        self.chat_template = chat_template
        spec = json.loads(backend.to_str())
        spec["truncation"] = spec["padding"] = None
        self._controls = _find_controls(spec, set(self.special_tokens.values()))
        self._pattern = _alternation(self._controls)
        self._full = backend
        self._plain, self._plain_inside, self._onward = _plain_backends(spec, self._controls)
        self._pieces = _all_pieces(self._full, spec)
        self.special_ids = frozenset(
            control.token_id for control in self._controls.values() if control.is_special
        )
        self.control_ids = frozenset(control.token_id for control in self._controls.values())
        self.bos_token_id = self._named_id("bos_token")
        self.eos_token_id = self._named_id("eos_token")
        if adds_bos is None:
            adds_bos = self._full.encode("", add_special_tokens=True).ids[:1] == [
                self.bos_token_id
            ]
        self.adds_bos = adds_bos and self.bos_token_id is not None

    @property
    def vocab_size(self) -> int:
        """One past the largest token id; a model may have more rows than that."""
        return len(self._pieces)

    @property
    def pieces(self) -> tuple[bytes, ...]:
        """Bytes of every token by id; empty for ids that no token has."""
        return self._pieces

    def encode_plain(self, text: str) -> list[int]:
        """Token ids of `text`; nothing it spells becomes a control token. Pure."""
        return self.encode_stretches([Stretch(text)])

    def encode_inside(self, text: str) -> list[int]:
        """Like `encode_plain` for a text that does not begin the prompt. Pure."""
        return self.encode_stretches([Stretch(text)], at_start=False)

    def encode_onward(self, text: str) -> list[int]:
        """Like `encode_inside` for a text in the middle of a run: no blank is put before it.

        So the tokens spell the text, but for what a vocabulary changes or lacks. Pure.
        """
        check_text(text, "text")
        return list(self._onward.encode(text, add_special_tokens=False).ids) if text else []

    def encode_template(self, text: str) -> list[int]:
        """Token ids of `text`; control tokens it spells count, none is added. Pure."""
        return self.encode_stretches([Stretch(text, is_template=True)])

    def encode_stretches(
        self, stretches: Iterable[Stretch], *, at_start: bool = True
    ) -> list[int]:
        """Token ids of the joined text; only template stretches can spell control tokens.

        Equals the backend's own encoding of the joined text if no user's text spells a control
        token. `at_start` says whether the text begins a prompt (sentencepiece's first-word
        rule). Raises BadRequest for half of a surrogate pair. Pure.
        """
        stretches = list(stretches)
        text = check_text("".join(stretch.text for stretch in stretches), "text")
        ids: list[int] = []
        position = 0
        for start, end, control in self._find(text, stretches):
            ids += self._run(text[position:start], at_start=at_start and position == 0)
            ids.append(control.token_id)
            position = end
        return ids + self._run(text[position:], at_start=at_start and position == 0)

    def split_settled(
        self, stretches: Sequence[Stretch]
    ) -> tuple[list[Stretch], list[Stretch]]:
        """The stretches cut where tokens of the first part are certain, whatever text follows.

        They are cut behind the last control token; a text without one is all second part. The
        tokens are those of the first part, and of the second with `at_start` false if the first
        is not empty. Pure.
        """
        text = "".join(stretch.text for stretch in stretches)
        cut = 0
        for _, end, control in self._find(text, stretches):
            looks_ahead = control.rstrip or control.is_word
            cut = end if text[end:].strip() or not looks_ahead else 0
        return cut_stretches(stretches, cut)

    def token_id(self, spelling: str) -> int | None:
        """Id of a token by its spelling in the vocabulary, or None. Pure."""
        found: int | None = self._full.token_to_id(spelling)
        return found

    def spelling(self, token_id: int) -> str | None:
        """The vocabulary's own spelling of a token, or None. Pure."""
        found: str | None = self._full.id_to_token(token_id)
        return found

    def control_spellings(self, *, special: bool) -> tuple[str, ...]:
        """Spellings of the special (or of the other) control tokens, longest first. Pure."""
        found = [
            text for text, control in self._controls.items() if control.is_special is special
        ]
        return tuple(sorted(found, key=len, reverse=True))

    def piece(self, token_id: int) -> bytes:
        """Exact bytes of a token, perhaps part of a character; empty for unknown ids. Pure."""
        return self._pieces[token_id] if 0 <= token_id < len(self._pieces) else b""

    def decode(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        at_start: bool = False,
    ) -> str:
        """Text of token ids: their bytes joined, what is not UTF-8 as U+FFFD. Pure.

        `at_start` takes off the blank that a sentencepiece vocabulary puts before the first
        word, so that decoding a whole encoded text gives the text.
        """
        shown = [
            token_id
            for token_id in token_ids
            if not (skip_special_tokens and token_id in self.special_ids)
        ]
        content = b"".join(map(self.piece, shown))
        if at_start and content.startswith(b" ") and self._prefixes_blank:
            content = content[1:]
        return content.decode(errors="replace")

    @property
    def _prefixes_blank(self) -> bool:
        first = self._run("a", at_start=True)
        return bool(first) and self.piece(first[0]).startswith(b" ")

    def _named_id(self, name: str) -> int | None:
        spelling = self.special_tokens.get(name)
        return None if spelling is None else self.token_id(spelling)

    def _run(self, text: str, *, at_start: bool) -> list[int]:
        if not text:
            return []
        backend = self._plain if at_start else self._plain_inside
        ids: list[int] = backend.encode(text, add_special_tokens=False).ids
        return ids

    def _find(
        self, text: str, stretches: Sequence[Stretch]
    ) -> Iterator[tuple[int, int, _Control]]:
        """Control tokens as (start, end, token), blanks taken in where the token says so."""
        free = offset = 0
        for stretch in stretches:
            offset, begin = offset + len(stretch.text), offset
            if not stretch.is_template or self._pattern is None:
                continue
            for match in self._pattern.finditer(text, begin, offset):
                control = self._controls[match[0]]
                start, end = match.span()
                if start < free or (control.is_word and not _is_word(text, start, end)):
                    continue
                if control.lstrip:
                    start = free + len(text[free:start].rstrip())
                if control.rstrip:
                    end = len(text) - len(text[end:].lstrip())
                yield start, end, control
                free = end


def _is_word(text: str, start: int, end: int) -> bool:
    around = text[max(start - 1, 0) : start] + text[end : end + 1]
    return re.search(r"\w", around) is None


def _find_controls(spec: Mapping[str, Any], special: set[str]) -> dict[str, _Control]:
    controls = {}
    for added in spec["added_tokens"]:
        text = added["content"]
        is_special = added["special"] or text in special
        if text and (is_special or _MARKUP.fullmatch(text)):
            controls[text] = _Control(
                added["id"], is_special, added["lstrip"], added["rstrip"], added["single_word"]
            )
    return controls


def _alternation(spellings: Iterable[str]) -> re.Pattern[str] | None:
    """Leftmost match, the longest of those that begin there, as the backend does."""
    ordered = sorted(spellings, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None


def _plain_backends(
    spec: Mapping[str, Any], controls: Mapping[str, _Control]
) -> tuple[Backend, Backend, Backend]:
    """Backends that cannot make a control token: at a prompt's start, inside it, within a run.

    Every control token gets an unguessable spelling, in the list of added tokens as well as in
    the vocabulary, so no text can spell it and no merge can end in it; ids stay as they are.
    """
    nonce = secrets.token_hex(16)
    names = {text: f"\ufdd0{nonce}.{control.token_id}" for text, control in controls.items()}
    added = [
        {**token, "content": names.get(token["content"], token["content"])}
        for token in spec["added_tokens"]
    ]
    model = _rename(spec["model"], names)
    plain = {**spec, "added_tokens": added, "model": model, "post_processor": None}
    outside = Backend.from_str(json.dumps(plain))
    inside = {**plain, "pre_tokenizer": _unprefixed(spec["pre_tokenizer"], ("first",))}
    onward = {
        **plain,
        "pre_tokenizer": _unprefixed(spec["pre_tokenizer"], ("first", "always")),
        "normalizer": _unprefixed(spec["normalizer"], ()),
    }
    known = {json.dumps(plain): outside}
    for made in (inside, onward):
        text = json.dumps(made)
        known.setdefault(text, outside if made == plain else Backend.from_str(text))
    return outside, known[json.dumps(inside)], known[json.dumps(onward)]


def _rename(model: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    renamed = dict(model)
    vocab = model.get("vocab", {})
    if isinstance(vocab, list):
        renamed["vocab"] = [[names.get(text, text), score] for text, score in vocab]
    else:
        renamed["vocab"] = {names.get(text, text): number for text, number in vocab.items()}
    if "merges" in model:
        renamed["merges"] = [
            [left, right]
            for left, right in model["merges"]
            if left not in names and right not in names and left + right not in names
        ]
    if model.get("unk_token") is not None:
        renamed["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    return renamed


def _unprefixed(step: Any, schemes: tuple[str, ...]) -> Any:  # noqa: ANN401 - parsed JSON
    """A step that puts no blank before words by these schemes, nor by a normalizer's rule."""
    if isinstance(step, list):
        return [_unprefixed(one, schemes) for one in step if not _is_prefix(one)]
    if not isinstance(step, dict):
        return step
    if _is_prefix(step):
        return None
    changed = {key: _unprefixed(value, schemes) for key, value in step.items()}
    if changed.get("prepend_scheme") in schemes:
        changed["prepend_scheme"] = "never"
    if "add_prefix_space" in changed and "always" in schemes:
        changed["add_prefix_space"] = False
    return changed


def _is_prefix(step: Any) -> bool:  # noqa: ANN401 - parsed JSON
    return isinstance(step, dict) and step.get("type") == "Prepend"


def _all_pieces(backend: Backend, spec: Mapping[str, Any]) -> tuple[bytes, ...]:
    vocab = backend.get_vocab(with_added_tokens=True)
    pieces = [b""] * (max(vocab.values(), default=-1) + 1)
    rule = piece_rule(spec)
    for spelling, token_id in vocab.items():
        pieces[token_id] = rule(spelling)
    for added in spec["added_tokens"]:
        pieces[added["id"]] = added["content"].encode()
    return tuple(pieces)
