"""A start from which the language model learns fast: shared words, matching attention.

What the tower's facts mean is known, so the projector's second layer starts by saying it: the
fact "red" becomes the embedding of the word "red". Because input and output embeddings are
tied, a decoder that merely looks at the right patch already says the right word.
"""

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from mmserve.testing.scenes_words import PLURALS
from mmserve.testing.scenes_world import COLOURS, PLACES, SHAPES, SIZES
from training.labels import GROUPS, STARTS
from training.model import WIDTH

HEAD = 32
WORD_SPREAD = 0.05


def init_words(model: nn.Module, tokenizer: PreTrainedTokenizerFast) -> None:
    """Spellings of one word ("red", " red", "Red", plurals) start alike. Changes: `model`."""
    table = model.model.language_model.embed_tokens.weight
    stems = {plural: word for word, plural in PLURALS.items()}
    shared: dict[str, Tensor] = {}
    for token in range(len(tokenizer)):
        text = tokenizer.decode([token]).strip().lower()
        word = stems.get(text, text)
        base = shared.setdefault(word, torch.randn(WIDTH))
        table.data[token] = WORD_SPREAD * (0.8 * base + 0.6 * torch.randn(WIDTH))


def init_projector(model: nn.Module, tokenizer: PreTrainedTokenizerFast) -> None:
    """Makes each fact start as the mean of its words' embeddings. Changes: `model`."""
    table = model.model.language_model.embed_tokens.weight.data
    digits = [str(digit) for digit in range(10)]
    words = {
        "kind": ("nothing", "object", "number"),
        "shape": SHAPES,
        "colour": COLOURS,
        "size": SIZES,
        "tens": (*digits, "number"),
        "ones": digits,
        "cell": PLACES,
    }
    columns = model.model.multi_modal_projector.linear_2.weight.data
    columns.normal_(0, 0.01)
    for group in GROUPS:
        role = WORD_SPREAD * torch.randn(WIDTH)
        for number, text in enumerate(words[group]):
            spellings = [*tokenizer.encode(text, add_special_tokens=False)]
            spellings += tokenizer.encode(f" {text}", add_special_tokens=False)
            own = WORD_SPREAD * torch.randn(WIDTH)
            vector = table[spellings].mean(0) + 0.3 * role + 0.5 * own
            columns[:, STARTS[group] + number] = 0.5 * vector


def init_attention(model: nn.Module) -> None:
    """Half of the heads start by looking for tokens like their own and copying them.

    Source: Mimetic initialization of self-attention layers (2023), with a positive sign for
    the values. Changes: `model`.
    """
    for layer in model.model.language_model.layers:
        attention = layer.self_attn
        for head in range(3):
            rows = slice(head * HEAD, (head + 1) * HEAD)
            match = 0.05 * torch.randn(HEAD, WIDTH)
            copy = 0.05 * torch.randn(HEAD, WIDTH)
            attention.q_proj.weight.data[rows] = match
            attention.k_proj.weight.data[rows] = match
            attention.v_proj.weight.data[rows] = copy
            attention.o_proj.weight.data[:, rows] = copy.T


def init_language(model: nn.Module, tokenizer: PreTrainedTokenizerFast) -> None:
    """All of the above, and quiet feed-forward outputs. Changes: `model`."""
    for layer in model.model.language_model.layers:
        layer.self_attn.o_proj.weight.data.mul_(0.5)
        layer.mlp.down_proj.weight.data.mul_(0.5)
    init_words(model, tokenizer)
    init_projector(model, tokenizer)
    init_attention(model)
