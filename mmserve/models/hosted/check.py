"""The check that decides at load whether a hosted model is served: ours against its own.

ids ----> transformers, eager attention, whole ----> log-probabilities
   '----> our decoder, uneven pieces, two sequences in a step, KV kept ----> the same?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mmserve.models.hosted.attending import implementation
from mmserve.models.hosted.eyes import Foreign
from mmserve.models.hosted.language import HostedDecoder, decoder_of
from mmserve.models.ports import DecoderShape

__all__ = ["check_pictures", "check_text"]

_NUM_TOKENS = 24
_PIECES = (((0, 7),), ((0, 9), (1, 5)), ((1, 19),), ((0, 8),))
"""Steps of (sequence, tokens), for two sequences of `_NUM_TOKENS`."""
_PICTURE_PIECE = 195
"""Tokens of a prompt with a picture that are computed in one step."""
_TOLERANCE = 2e-3
_HALF_TOLERANCE = 0.1
"""Of the mean difference in half precision, where single log-probabilities differ by more."""


class _PlainAttention:
    """A `PlainAttention` over KV of its own, for as many sequences as there are.

    Args:
        shape: of the decoder.
    """

    def __init__(self, shape: DecoderShape) -> None:
        self._shape = shape
        self._kept: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self._rows: Sequence[tuple[int, int]] = ()

    def begin(self, rows: Sequence[tuple[int, int]]) -> None:
        """The next step has these (sequence, tokens), end to end. Changes: the step."""
        self._rows = rows

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """See `models.PlainAttention`. Changes: the KV."""
        counts = [num for _, num in self._rows]
        parts = zip(self._rows, keys.split(counts), values.split(counts), strict=True)
        for (sequence, _), *new in parts:
            old = self._kept.get((layer, sequence))
            if old is not None:
                new = [torch.cat(pair) for pair in zip(old, new, strict=True)]
            self._kept[layer, sequence] = (new[0], new[1])

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        """See `models.PlainAttention`. Pure."""
        parts = queries.split([num for _, num in self._rows])
        found = [
            self._attend(layer, part, *self._kept[layer, sequence])
            for (sequence, _), part in zip(self._rows, parts, strict=True)
        ]
        return torch.cat(found)

    def attend_kept(self, layer: int, queries: Tensor) -> Tensor:
        """See `models.PlainAttention`; every output is wanted here. Pure."""
        return self.attend(layer, queries)

    def _attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """The last n of L tokens, [n, H, D], on all of them, [L, G, D]."""
        num, heads, size = queries.shape
        repeat = heads // keys.shape[1]
        scores = torch.einsum("nhd,lhd->hnl", queries, keys.repeat_interleave(repeat, 1))
        scores = scores.float() * size**-0.5
        cap, window = self._shape.softcap, self._shape.windows[layer]
        if cap is not None:
            scores = (scores / cap).tanh() * cap
        key_at = torch.arange(len(keys), device=keys.device)
        query_at = key_at[len(keys) - num :, None]
        hidden = key_at > query_at
        if window is not None:
            hidden |= key_at <= query_at - window
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1).to(values.dtype)
        return torch.einsum("hnl,lhd->nhd", weights, values.repeat_interleave(repeat, 1))


def check_text(model: Foreign, decoder: HostedDecoder) -> None:
    """Raise ValueError if two random texts in pieces are not what the model says itself.

    Cost: about two forwards of 48 tokens.
    """
    texts = _random_texts(model, decoder.shape.vocab_size)
    with implementation(decoder_of(model), "eager"):
        wanted = model(input_ids=texts, use_cache=False).logits
    embedded = [decoder.embed(text) for text in texts]
    _compare(_in_pieces(decoder, embedded), wanted, "text")


def check_pictures(
    model: Foreign,
    decoder: HostedDecoder,
    inputs: Mapping[str, Tensor],
    features: Tensor,
    image_token_id: int,
) -> None:
    """Raise ValueError if a prompt with a picture is not what the model says itself.

    Args:
        model: whole.
        decoder: made of it.
        inputs: of a prompt with one picture, as its processor makes them.
        features: [K, E] of the picture.
        image_token_id: placeholder of features.

    Cost: two forwards of the prompt, and one of the tower.
    """
    ids = inputs["input_ids"][0]
    is_feature = ids == image_token_id
    num_placeholders = int(is_feature.sum())
    if num_placeholders != len(features):
        raise ValueError(f"a picture has {len(features)} features, not {num_placeholders}")
    with implementation(decoder_of(model), "eager"):
        wanted = model(**inputs, use_cache=False).logits
    hidden = decoder.embed(ids.masked_fill(is_feature, 0))
    hidden[is_feature] = features.to(hidden.dtype)
    attention = _PlainAttention(decoder.shape)
    found: list[Tensor] = []
    for places in torch.arange(len(ids), device=ids.device).split(_PICTURE_PIECE):
        attention.begin([(0, len(places))])
        keep = places - places[0]
        outputs = decoder.forward(hidden[places], places, attention, keep)
        found.append(decoder.logits(outputs))
    _compare(torch.cat(found)[None], wanted, "pictures")


def _random_texts(model: Foreign, vocab_size: int) -> Tensor:
    """Two texts int64 [2, n] without tokens that mean more than a word."""
    config = decoder_of(model).config
    special: set[int] = set()
    for name, value in (*config.to_dict().items(), *model.config.to_dict().items()):
        if name.endswith(("_id", "_ids", "_index")):
            named = value if isinstance(value, list) else [value]
            special.update(one for one in named if isinstance(one, int))
    usual = [i for i in range(min(vocab_size, config.vocab_size)) if i not in special]
    drawn = torch.randperm(len(usual), generator=torch.Generator().manual_seed(0))
    places = drawn.repeat(-(-2 * _NUM_TOKENS // len(drawn)))[: 2 * _NUM_TOKENS]
    texts = torch.tensor(usual)[places].view(2, _NUM_TOKENS)
    return texts.to(model.device)


def _in_pieces(decoder: HostedDecoder, embedded: Sequence[Tensor]) -> Tensor:
    """[2, n, V] logits of two sequences, computed in `_PIECES`."""
    attention = _PlainAttention(decoder.shape)
    done = [0] * len(embedded)
    found: list[list[Tensor]] = [[] for _ in embedded]
    for rows in _PIECES:
        parts, places = [], []
        for sequence, num in rows:
            begin = done[sequence]
            parts.append(embedded[sequence][begin : begin + num])
            places.append(torch.arange(begin, begin + num))
            done[sequence] += num
        hidden = torch.cat(parts)
        positions = torch.cat(places).to(hidden.device)
        attention.begin(rows)
        keep = torch.arange(len(hidden), device=hidden.device)
        logits = decoder.logits(decoder.forward(hidden, positions, attention, keep))
        for (sequence, _), part in zip(rows, logits.split([n for _, n in rows]), strict=True):
            found[sequence].append(part)
    return torch.stack([torch.cat(parts) for parts in found])


def _compare(found: Tensor, wanted: Tensor, what: str) -> None:
    ours, theirs = (some.float().log_softmax(-1) for some in (found, wanted))
    gaps = (ours - theirs).abs()
    if wanted.dtype == torch.float32:
        gap, most = float(gaps.max()), _TOLERANCE
    else:
        gap, most = float(gaps.mean()), _HALF_TOLERANCE
    if not gap <= most:
        raise ValueError(
            f"log-probabilities of {what} differ by {gap:.2g} from transformers' own, "
            f"limit {most}: it does something that is not done here"
        )
