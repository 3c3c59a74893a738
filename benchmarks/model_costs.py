"""What a Llama's steps cost at least: bytes of weights to read, operations to do."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ModelCosts", "model_costs"]

_BYTES_OF_VALUE = {"full": 4.0, "int8": 1.0, "int4": 0.5}


@dataclass(frozen=True, slots=True)
class ModelCosts:
    """Sizes that bound a step.

    Args:
        matrix_values: of all matrices, the output matrix included; the embedding counts only
            where it is that matrix.
        head_values: of the output matrix, which a prompt needs for its last token alone.
        gain_values: of norms, which stay in float32.
        attention_width: of all heads together.
        num_layers: that attend.
    """

    matrix_values: int
    head_values: int
    gain_values: int
    attention_width: int
    num_layers: int

    def step_bytes(self, bits: str) -> float:
        """Bytes of weights that a decode step reads, scales of few bits not counted. Pure."""
        return self.matrix_values * _BYTES_OF_VALUE[bits] + 4.0 * self.gain_values

    def prefill_flop(self, num_tokens: int) -> int:
        """Operations of a prompt: matrices, causal attention, logits of the last token. Pure.

        A multiplication and an addition are two.
        """
        products = 2 * num_tokens * (self.matrix_values - self.head_values)
        num_pairs = num_tokens * (num_tokens + 1) // 2
        attention = 4 * num_pairs * self.attention_width * self.num_layers
        return products + attention + 2 * self.head_values


def model_costs(directory: Path) -> ModelCosts:
    """Costs of a Llama's checkpoint, from its config.json alone. Pure."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    width, num_layers = config["hidden_size"], config["num_hidden_layers"]
    num_heads, num_kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_size = config.get("head_dim") or width // num_heads
    attention = 2 * width * head_size * (num_heads + num_kv_heads)
    head = config["vocab_size"] * width
    return ModelCosts(
        matrix_values=num_layers * (attention + 3 * width * config["intermediate_size"]) + head,
        head_values=head,
        gain_values=(2 * num_layers + 1) * width,
        attention_width=num_heads * head_size,
        num_layers=num_layers,
    )
