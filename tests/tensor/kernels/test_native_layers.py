"""All layers in one call: to the bit what their parts give, and near torch's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from mmserve.core import ForwardPlan, PlanRow, RowSampling, SamplingParams
from mmserve.kernels import KvTensors, Ops, Product, TorchOps
from mmserve.kernels.layers import ComposedLayers
from mmserve.kernels.linear import Linear
from mmserve.kernels.native import NativeOps, Unbuildable
from mmserve.kernels.native.linear import codes_and_scales, values_of
from mmserve.models import Decoder, DecoderConfig, RopeConfig
from mmserve.models.weights import Weights
from mmserve.runner.step import StepAttention, lay_out

try:
    NATIVE = NativeOps()
except Unbuildable as reason:
    pytest.skip(f"no native library: {reason}", allow_module_level=True)

PLAIN = DecoderConfig(
    family="llama",
    vocab_size=61,
    hidden_size=72,
    intermediate_size=100,
    num_layers=3,
    num_heads=6,
    num_kv_heads=2,
    head_size=24,
    max_positions=512,
    rms_eps=1e-5,
    windows=(None, None, None),
    ropes=(RopeConfig(1e4),) * 3,
)
GRID = RopeConfig(1e4, axes=(0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2))
VARIANTS = {
    "plain": PLAIN,
    "one head each": replace(PLAIN, num_kv_heads=6, is_tied=True),
    "odd sizes": replace(PLAIN, hidden_size=35, intermediate_size=21, head_size=10),
    "narrow heads": replace(PLAIN, head_size=4),
    "norms of heads": replace(PLAIN, has_qk_norm=True),
    "four norms": replace(PLAIN, has_output_norms=True, norm_offset=1.0),
    "scaled queries": replace(PLAIN, query_scale=0.37, has_qk_norm=True),
    "bent scores": replace(PLAIN, attention_softcap=2.0, activation="gelu_pytorch_tanh"),
    "some windows": replace(PLAIN, windows=(9, None, 9)),
    "a window last": replace(PLAIN, windows=(None, None, 5), is_tied=True),
    "some layers without rope": replace(PLAIN, ropes=(RopeConfig(1e4), None, RopeConfig(5e5))),
    "no rope": replace(PLAIN, ropes=(None,) * 3),
    "part of a head turns": replace(PLAIN, ropes=(RopeConfig(1e4, share=0.5, gain=1.2),) * 3),
    "biases": replace(PLAIN, has_qkv_bias=True, has_out_bias=True, has_mlp_bias=True),
    "grid": replace(PLAIN, ropes=(GRID,) * 3),
    "one layer": replace(PLAIN, num_layers=1, windows=(None,), ropes=(RopeConfig(1e4),)),
}


class _Drawn:
    """A checkpoint of random values, each drawn from its own name."""

    def __init__(self, config: DecoderConfig) -> None:
        q, kv = config.num_heads * config.head_size, config.num_kv_heads * config.head_size
        width, ffn = config.hidden_size, config.intermediate_size
        outs = {"q_proj": q, "k_proj": kv, "v_proj": kv, "o_proj": width}
        outs |= {"gate_proj": ffn, "up_proj": ffn, "down_proj": width}
        ins = {"o_proj": q, "down_proj": ffn}
        norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        self._shapes = {"text.embed_tokens.weight": (config.vocab_size, width)}
        self._shapes["text.norm.weight"] = (width,)
        if not config.is_tied:
            self._shapes["lm_head.weight"] = (config.vocab_size, width)
        for number in range(config.num_layers):
            path = f"text.layers.{number}"
            for name, size in outs.items():
                part = "self_attn" if name[0] in "qkvo" else "mlp"
                self._shapes[f"{path}.{part}.{name}.weight"] = (size, ins.get(name, width))
                self._shapes[f"{path}.{part}.{name}.bias"] = (size,)
            for name in norms:
                self._shapes[f"{path}.{name}_layernorm.weight"] = (width,)
            for name in ("q_norm", "k_norm"):
                self._shapes[f"{path}.self_attn.{name}.weight"] = (config.head_size,)
        self.names = {name: name for name in self._shapes}

    def read(self, name: str) -> torch.Tensor:
        generator = torch.Generator().manual_seed(sum(map(ord, name)))
        shape = self._shapes[name]
        values = torch.randn(shape, generator=generator)
        return values * shape[-1] ** -0.5 if len(shape) == 2 else 1 + values / 4


class _RoundedOps(TorchOps):
    """Torch's ops, with weights of few bits as the native ones round them."""

    def linear(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        activation: str | None = None,
        bits: int | None = None,
    ) -> Product:
        if bits is not None:
            weight = values_of(*codes_and_scales(weight, bits), weight.shape[1])
        return Linear(weight, bias, activation=activation)


class _Methods:
    """A step's attention that does not show its parts."""

    def __init__(self, attention: StepAttention) -> None:
        self.write = attention.write
        self.turn_and_write = attention.turn_and_write
        self.attend = attention.attend
        self.attend_kept = attention.attend_kept


def _decoder(config: DecoderConfig, ops: Ops, bits: int | None = None) -> Decoder:
    source = _Drawn(config)
    return Decoder(
        config, Weights(source, torch.float32, torch.device("cpu"), bits=bits, ops=ops)
    )


def _row(sequence: int, start: int, num: int, keep: str, *, has_grid: bool) -> PlanRow:
    """Tokens [start, start + num) of a sequence whose slots lie anywhere."""
    rng = np.random.default_rng(sequence)
    end = start + num
    token_ids, slots = rng.integers(0, 61, 60), rng.permutation(60) + 60 * sequence
    positions = None
    if has_grid:
        places = np.arange(start, end)
        positions = np.stack([places, places // 3, places % 5])
    return PlanRow(
        sequence_id=sequence,
        start=start,
        token_ids=token_ids[start:end],
        slots=slots[:end],
        sampling=None if keep == "none" else RowSampling(SamplingParams(), 0, 0, token_ids[:0]),
        logprobs_from=start + 1 if keep == "all" else None,
        positions=positions,
    )


STEPS = (
    ((0, 0, 23, "last"), (1, 0, 9, "none")),
    ((2, 0, 17, "none"),),
    ((1, 9, 1, "last"), (2, 17, 30, "last"), (0, 23, 1, "last")),
    ((1, 10, 1, "last"),),
    ((0, 24, 5, "all"), (1, 11, 1, "last")),
    ((0, 29, 4, "all"), (1, 12, 3, "all")),
    ((0, 33, 1, "last"), (1, 15, 1, "last"), (2, 47, 1, "last")),
)
"""(sequence, first token, tokens, whose output is wanted): prompts, mixed steps, decode."""


def _run(
    decoder: Decoder,
    ops: Ops,
    shown: Callable[[StepAttention], object] = lambda attention: attention,
    *,
    num_deep: int = 0,
) -> list[torch.Tensor]:
    """Outputs of every step, and the store behind them."""
    shape = decoder.shape
    size = (shape.num_layers, shape.num_kv_heads, 200, shape.head_size)
    kv = KvTensors(torch.zeros(size), torch.zeros(size))
    found: list[torch.Tensor] = []
    for number, step in enumerate(STEPS):
        rows = tuple(_row(*row, has_grid=shape.has_grid_positions) for row in step)
        layout = lay_out(ForwardPlan(number, rows))
        attention = StepAttention(ops.attention, kv, shape, rows, layout)
        hidden = decoder.embed(torch.from_numpy(layout.token_ids))
        deep = torch.ones(num_deep, *hidden.shape) if num_deep else None
        outputs = decoder.forward(
            hidden,
            torch.from_numpy(layout.positions),
            shown(attention),
            torch.from_numpy(layout.keep),
            deep,
        )
        assert outputs.shape == (len(layout.keep), shape.hidden_size)
        found.append(outputs)
    return [*found, kv.keys, kv.values]


def _equal(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def _forbid_parts(patch: pytest.MonkeyPatch) -> None:
    """Layers that are not run in one piece fail from now on."""

    def fail(*_: object) -> None:
        raise AssertionError("layers are composed")

    patch.setattr(ComposedLayers, "run", fail)


@pytest.mark.parametrize("bits", [None, 8, 4])
@pytest.mark.parametrize("name", VARIANTS)
def test_one_call_gives_what_the_parts_give(
    name: str, bits: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs and stored KV are the same to the bit, and torch's within rounding."""
    decoder = _decoder(VARIANTS[name], NATIVE, bits)
    composed = _run(decoder, NATIVE, _Methods)
    reference = _RoundedOps()
    expected = _run(_decoder(VARIANTS[name], reference, bits), reference)
    _forbid_parts(monkeypatch)
    found = _run(decoder, NATIVE)
    assert _equal(found, composed)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_threads_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one thread or two, outputs are the same to the bit."""
    decoder = _decoder(VARIANTS["norms of heads"], NATIVE)
    _forbid_parts(monkeypatch)
    before = torch.get_num_threads()
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(_run(decoder, NATIVE))
    torch.set_num_threads(before)
    assert _equal(*found)


def test_two_decoders_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has memory of its own: what runs beside it changes nothing."""
    decoders = [_decoder(VARIANTS[name], NATIVE) for name in ("plain", "four norms")]
    expected = [_run(decoder, NATIVE) for decoder in decoders]
    _forbid_parts(monkeypatch)
    with ThreadPoolExecutor(2) as pool:
        for _ in range(5):
            found = pool.map(lambda decoder: _run(decoder, NATIVE), decoders)
            assert all(map(_equal, found, expected))


def test_deep_features_are_added_by_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that adds features behind early layers is composed, and right."""
    config = replace(PLAIN, num_deep=2)
    decoder, torch_ops = _decoder(config, NATIVE), TorchOps()
    expected = _run(_decoder(config, torch_ops), torch_ops, num_deep=2)
    found = _run(decoder, NATIVE, num_deep=2)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    _forbid_parts(monkeypatch)
    with pytest.raises(AssertionError, match="composed"):
        _run(decoder, NATIVE, num_deep=2)


class _OneForeign(NativeOps):
    """Native ops whose products of the MLP's width are torch's."""

    def linear(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        activation: str | None = None,
        bits: int | None = None,
    ) -> Product:
        if weight.shape[1] == PLAIN.intermediate_size:
            return Linear(weight, bias, activation=activation)
        return super().linear(weight, bias, activation=activation, bits=bits)


@pytest.mark.parametrize("ops", [_OneForeign(), NATIVE], ids=["products", "attention"])
def test_what_the_library_cannot_read_is_composed(ops: Ops) -> None:
    """With products or attention of torch's, outputs are still right."""
    reference = TorchOps()
    expected = _run(_decoder(PLAIN, reference), reference)
    attends = ops if isinstance(ops, _OneForeign) else reference
    found = _run(_decoder(PLAIN, ops), attends)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_a_large_step_after_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory grows with the step, and a small step after it is as before."""
    _forbid_parts(monkeypatch)
    decoder = _decoder(PLAIN, NATIVE)
    first = _run(decoder, NATIVE)
    assert _equal(_run(decoder, NATIVE), first)
    assert _equal(_run(_decoder(PLAIN, NATIVE), NATIVE), first)
