# mypy: disallow-untyped-decorators=False
"""The kernels that choose tokens: a row's vocabulary is looked at in tiles, by many programs.

    logits [R, V]  --survey--> a tile's highest logit, sum of exponentials, best allowed token
                   --weigh---> exp((logit - peak) / temperature), a tile's mass and heaviest
    tiles          --settle--> fault, greedy token, or truncation and draw; log-probability

Weights are summed as integers of 2^-44, so that no order of summation changes a draw, and a row
draws the same alone and among others. Top-k and top-p are thresholds on a weight's bits, found
by bisection between weights that occur; tiles without one that heavy are skipped.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = [
    "FIELDS",
    "NOTHING_ALLOWED",
    "NOT_FINITE",
    "edit_kernel",
    "sampling_tile",
    "settle_kernel",
    "survey_kernel",
    "weigh_kernel",
]

FIELDS = (
    "temperature",  # bits of a float64
    "top_p",  # bits of a float64
    "min_p",  # bits of a float64
    "top_k",  # 0: off
    "seed",
    "position",
    "mask",  # row of the masks, or -1
    "first_edit",
    "end_edit",
)
"""What int64 [R, 9] say of each row."""

NOT_FINITE, NOTHING_ALLOWED = 1, 2
"""Fault codes; 0 is none."""

_TILE = 2048
"""With twice as many, accumulators of a warm row spill on sm_80."""


def sampling_tile(vocab_size: int) -> tuple[int, int]:
    """Tokens of a tile, and how many tiles a vocabulary has. Pure."""
    return _TILE, triton.cdiv(vocab_size, _TILE)


_NUM_FIELDS: tl.constexpr = tl.constexpr(len(FIELDS))
_GOLDEN: tl.constexpr = tl.constexpr(0x9E3779B97F4A7C15)
_FIRST: tl.constexpr = tl.constexpr(0xBF58476D1CE4E5B9)
_SECOND: tl.constexpr = tl.constexpr(0x94D049BB133111EB)
_UNIT: tl.constexpr = tl.constexpr(float(1 << 44))
_HEAVIEST: tl.constexpr = tl.constexpr(0x3F800000)  # bits of 1.0
_BEYOND: tl.constexpr = tl.constexpr(0x7FFFFFFF)


@triton.jit
def edit_kernel(
    logits: tl.tensor,
    places: tl.tensor,
    changes: tl.tensor,
    raw: tl.tensor,
    num_edits: tl.tensor,
    size: tl.constexpr,
) -> None:
    """Penalties, bias and bans of all rows, an entry for each token that any of them names.

    `places` int64 [n] says where in `logits` each token is, all distinct; `changes` float32
    [3, n] holds repetition penalty, cost to subtract and bias to add.
    Changes: `logits`; `raw` float32 [n] gets them as they were.
    """
    entry = tl.program_id(0) * size + tl.arange(0, size)
    inside = entry < num_edits
    place = tl.load(places + entry, mask=inside, other=0)
    penalty = tl.load(changes + entry, mask=inside, other=1.0)
    cost = tl.load(changes + num_edits + entry, mask=inside, other=0.0)
    bias = tl.load(changes + 2 * num_edits + entry, mask=inside, other=0.0)
    old = tl.load(logits + place, mask=inside, other=0.0)
    tl.store(raw + entry, old, mask=inside)
    new = tl.where(old > 0, tl.div_rn(old, penalty), old * penalty)
    tl.store(logits + place, new - cost + bias, mask=inside)


@triton.jit
def survey_kernel(
    logits: tl.tensor,
    table: tl.tensor,
    masks: tl.tensor,
    peaks: tl.tensor,
    sums: tl.tensor,
    best: tl.tensor,
    best_ids: tl.tensor,
    row_stride: tl.tensor,
    num_words: tl.tensor,
    vocab_size: tl.tensor,
    has_raw: tl.constexpr,
    has_sums: tl.constexpr,
    has_best: tl.constexpr,
    tile: tl.constexpr,
    num_tiles: tl.constexpr,
) -> None:
    """What one tile of one row holds. All outputs are [R, num_tiles].

    Changes: with `has_raw` `peaks`, float32, infinite if a logit is not a number, and with
    `has_sums` `sums`, float32, of exponentials relative to the tile's peak; with `has_best`
    `best`, float32, and `best_ids`, int32, of what the row's mask allows.
    """
    row, number = tl.program_id(1).to(tl.int64), tl.program_id(0)
    token = number * tile + tl.arange(0, tile)
    inside = token < vocab_size
    here = row * num_tiles + number
    logit = tl.load(logits + row * row_stride + token, mask=inside, other=float("-inf"))
    if has_raw:
        peak = tl.max(tl.where(logit != logit, float("inf"), logit), axis=0)
        tl.store(peaks + here, peak)
        if has_sums:
            shift = tl.where(peak == float("-inf"), 0.0, peak)
            tl.store(sums + here, tl.sum(tl.exp(logit - shift), axis=0))
    if has_best:
        mask = tl.load(table + row * _NUM_FIELDS + 6)
        if mask >= 0:
            word = tl.load(masks + mask * num_words + token // 32, mask=inside, other=0)
            logit = tl.where(((word >> (token % 32)) & 1) != 0, logit, float("-inf"))
        highest = tl.max(logit, axis=0)
        tl.store(best + here, highest)
        found = tl.where((logit == highest) & inside, token, _BEYOND)
        tl.store(best_ids + here, tl.min(found, axis=0))


@triton.jit
def weigh_kernel(
    logits: tl.tensor,
    weights: tl.tensor,
    table: tl.tensor,
    masks: tl.tensor,
    best: tl.tensor,
    heaviest: tl.tensor,
    masses: tl.tensor,
    row_stride: tl.tensor,
    num_words: tl.tensor,
    vocab_size: tl.tensor,
    tile: tl.constexpr,
    num_tiles: tl.constexpr,
    padded_tiles: tl.constexpr,
) -> None:
    """Weights of one tile of a row that is not greedy, the heaviest of the row being 1.

    Changes: `weights` [R, V] float32, which may be `logits`; `heaviest` [R, num_tiles] int32,
    bits of the tile's largest weight; `masses` [R, num_tiles] int64.
    """
    row, number = tl.program_id(1).to(tl.int64), tl.program_id(0)
    settings = table + row * _NUM_FIELDS
    temperature = tl.load(settings).to(tl.float64, bitcast=True)
    if temperature > 0:
        tiles = tl.arange(0, padded_tiles)
        known = tiles < num_tiles
        tops = tl.load(best + row * num_tiles + tiles, mask=known, other=float("-inf"))
        peak = tl.max(tops, axis=0)
        warmth = tl.maximum(temperature, 1e-30).to(tl.float32)
        token = number * tile + tl.arange(0, tile)
        inside = token < vocab_size
        logit = tl.load(logits + row * row_stride + token, mask=inside, other=float("-inf"))
        mask = tl.load(settings + 6)
        if mask >= 0:
            word = tl.load(masks + mask * num_words + token // 32, mask=inside, other=0)
            logit = tl.where(((word >> (token % 32)) & 1) != 0, logit, float("-inf"))
        weight = tl.exp(tl.div_rn(logit - peak, warmth))
        weight = tl.where(weight > 0, tl.minimum(weight, 1.0), 0.0)  # no number: no weight
        tl.store(weights + row * row_stride + token, weight, mask=inside)
        here = row * num_tiles + number
        tl.store(heaviest + here, tl.max(weight.to(tl.int32, bitcast=True), axis=0))
        tl.store(masses + here, tl.sum((weight * _UNIT).to(tl.int64), axis=0))


@triton.jit
def _mixed(state: tl.tensor) -> tl.tensor:
    """One step of SplitMix64, on uint64."""
    state += _GOLDEN
    state = (state ^ (state >> 30)) * _FIRST
    state = (state ^ (state >> 27)) * _SECOND
    return state ^ (state >> 31)


@triton.jit
def _uniform(seed: tl.tensor, position: tl.tensor) -> tl.tensor:
    """The number in [0, 1), float64, that `sampling.uniform_of` gives."""
    place = (position + 1).to(tl.uint64) * _GOLDEN
    state = _mixed(_mixed(seed.to(tl.uint64, bitcast=True)) + place)
    return (state >> 11).to(tl.int64).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def _at_least(
    row: tl.tensor,
    heaviest: tl.tensor,
    bits: tl.tensor,
    vocab_size: tl.tensor,
    tile: tl.constexpr,
    num_tiles: tl.constexpr,
) -> tl.tensor:
    """Count, mass and lightest of weights with `bits` or more, and heaviest of the others.

    Of one row's weights; the last two are bits.
    """
    count = tl.full([tile], 0, tl.int32)
    mass = tl.full([tile], 0, tl.int64)
    above = tl.full([tile], _BEYOND, tl.int32)
    below = tl.full([tile], 0, tl.int32)
    skipped = tl.full([], 0, tl.int32)
    for number in range(num_tiles):
        top = tl.load(heaviest + number)
        if top >= bits:
            token = number * tile + tl.arange(0, tile)
            inside = token < vocab_size
            weight = tl.load(row + token, mask=inside, other=0.0)
            own = weight.to(tl.int32, bitcast=True)
            is_in = (own >= bits) & inside
            count += is_in.to(tl.int32)
            mass += (tl.where(is_in, weight, 0.0) * _UNIT).to(tl.int64)
            above = tl.minimum(above, tl.where(is_in, own, _BEYOND))
            below = tl.maximum(below, tl.where(is_in, 0, own))
        else:
            skipped = tl.maximum(skipped, top)
    return (
        tl.sum(count, axis=0),
        tl.sum(mass, axis=0),
        tl.min(above, axis=0),
        tl.maximum(tl.max(below, axis=0), skipped),
    )


@triton.jit
def _edge(
    row: tl.tensor,
    heaviest: tl.tensor,
    low: tl.tensor,
    num_low: tl.tensor,
    least_count: tl.tensor,
    least_mass: tl.tensor,
    vocab_size: tl.tensor,
    tile: tl.constexpr,
    num_tiles: tl.constexpr,
) -> tl.tensor:
    """The largest weight that, with all heavier ones, reaches a count and a mass.

    The `num_low` weights with bits `low` or more reach both. Gives its bits, how many are equal
    to it, and count and mass of those above it.
    """
    high = tl.full([], _HEAVIEST, tl.int32)
    num_above = tl.full([], 0, tl.int32)
    mass_above = tl.full([], 0, tl.int64)
    while low < high:
        middle = low + (high - low + 1) // 2
        count, mass, above, below = _at_least(
            row, heaviest, middle, vocab_size, tile, num_tiles
        )
        reaches = (count >= least_count) & (mass.to(tl.float64) >= least_mass) & (count > 0)
        if reaches:
            low = above
            num_low = count
        else:
            high = tl.maximum(below, low)
            num_above = count
            mass_above = mass
    return low, num_low - num_above, num_above, mass_above


@triton.jit
def _kept(
    weight: tl.tensor, bits: tl.tensor, num_equal: tl.tensor, num_seen: tl.tensor
) -> tl.tensor:
    """Weights of a tile, 0 where lighter than `bits` or equal and behind `num_equal` such."""
    own = weight.to(tl.int32, bitcast=True)
    is_equal = (own == bits).to(tl.int32)
    place = tl.cumsum(is_equal, axis=0) + num_seen
    return tl.where((own > bits) | ((is_equal > 0) & (place <= num_equal)), weight, 0.0)


@triton.jit
def _truncation(
    row: tl.tensor,
    heaviest: tl.tensor,
    total: tl.tensor,
    top_k: tl.tensor,
    top_p: tl.tensor,
    min_p: tl.tensor,
    vocab_size: tl.tensor,
    tile: tl.constexpr,
    num_tiles: tl.constexpr,
) -> tl.tensor:
    """Bits of the lightest weight that is kept, how many equal to it are, and the mass kept."""
    bits = tl.full([], 0, tl.int32)
    num_equal = tl.full([], _BEYOND, tl.int32)
    num_kept = tl.full([], 0, tl.int32) + vocab_size
    if top_k > 0:
        num_kept = top_k.to(tl.int32)
        bits, num_equal, num_above, mass_above = _edge(
            row, heaviest, bits, vocab_size, num_kept, 0.0, vocab_size, tile, num_tiles
        )
        num_equal = num_kept - num_above
        each = (bits.to(tl.float32, bitcast=True) * _UNIT).to(tl.int64)
        total = mass_above + num_equal * each
    if top_p < 1:
        needed = total.to(tl.float64) * top_p
        bits, num_equal, num_above, mass_above = _edge(
            row, heaviest, bits, num_kept, 0, needed, vocab_size, tile, num_tiles
        )
        each = (bits.to(tl.float32, bitcast=True) * _UNIT).to(tl.int64)
        missing = tl.maximum(needed - mass_above.to(tl.float64), 0.0)
        enough = tl.ceil(missing / tl.maximum(each, 1).to(tl.float64))
        enough = tl.minimum(tl.maximum(enough, 1.0), 2147483647.0).to(tl.int32)
        num_equal = tl.minimum(num_equal, enough)
        total = mass_above + num_equal * each
    least = min_p.to(tl.float32).to(tl.int32, bitcast=True)
    if least > bits:
        bits = least
        num_equal = tl.full([], _BEYOND, tl.int32)
        _count, total, _above, _below = _at_least(
            row, heaviest, bits, vocab_size, tile, num_tiles
        )
    return bits, num_equal, total


@triton.jit
def _draw(
    row: tl.tensor,
    heaviest: tl.tensor,
    masses: tl.tensor,
    settings: tl.tensor,
    vocab_size: tl.tensor,
    tile: tl.constexpr,
    num_tiles: tl.constexpr,
    padded_tiles: tl.constexpr,
) -> tl.tensor:
    """The token where the row's number falls in the distribution that truncation leaves."""
    top_p = tl.load(settings + 1).to(tl.float64, bitcast=True)
    min_p = tl.load(settings + 2).to(tl.float64, bitcast=True)
    top_k = tl.load(settings + 3)
    number = _uniform(tl.load(settings + 4), tl.load(settings + 5))
    tiles = tl.arange(0, padded_tiles)
    mass = tl.load(masses + tiles, mask=tiles < num_tiles, other=0)
    total = tl.sum(mass, axis=0)
    bits = tl.full([], 0, tl.int32)
    num_equal = tl.full([], _BEYOND, tl.int32)
    found = tl.full([], 0, tl.int32)
    before = tl.full([], 0, tl.int64)
    seen_before = tl.full([], 0, tl.int32)
    if (top_k > 0) | (top_p < 1) | (min_p > 0):
        bits, num_equal, total = _truncation(
            row, heaviest, total, top_k, top_p, min_p, vocab_size, tile, num_tiles
        )
        target = _target(number, total)
        done = tl.full([], 0, tl.int64)
        num_seen = tl.full([], 0, tl.int32)
        for each in range(num_tiles):
            if (tl.load(heaviest + each) >= bits) & (done <= target):
                token = each * tile + tl.arange(0, tile)
                weight = tl.load(row + token, mask=token < vocab_size, other=0.0)
                kept = _kept(weight, bits, num_equal, num_seen)
                found = each
                before = done
                seen_before = num_seen
                done += tl.sum((kept * _UNIT).to(tl.int64), axis=0)
                own = weight.to(tl.int32, bitcast=True)
                num_seen += tl.sum((own == bits).to(tl.int32), axis=0)
    else:
        target = _target(number, total)
        reached = tl.cumsum(mass, axis=0)
        found = tl.sum((reached <= target).to(tl.int32), axis=0)
        before = tl.sum(tl.where(reached <= target, mass, 0), axis=0)
    token = found * tile + tl.arange(0, tile)
    weight = tl.load(row + token, mask=token < vocab_size, other=0.0)
    kept = _kept(weight, bits, num_equal, seen_before)
    reached = tl.cumsum((kept * _UNIT).to(tl.int64), axis=0) + before
    return found * tile + tl.sum((reached <= _target(number, total)).to(tl.int32), axis=0)


@triton.jit
def _target(number: tl.tensor, total: tl.tensor) -> tl.tensor:
    """The last unit of mass that lies before the token to draw, in [0, total)."""
    target = tl.floor(number * total.to(tl.float64)).to(tl.int64)
    return tl.minimum(target, total - 1)


@triton.jit
def settle_kernel(
    logits: tl.tensor,
    weights: tl.tensor,
    table: tl.tensor,
    peaks: tl.tensor,
    sums: tl.tensor,
    best: tl.tensor,
    best_ids: tl.tensor,
    heaviest: tl.tensor,
    masses: tl.tensor,
    places: tl.tensor,
    raw: tl.tensor,
    token_ids: tl.tensor,
    answers: tl.tensor,
    row_stride: tl.tensor,
    num_rows: tl.tensor,
    vocab_size: tl.tensor,
    has_sums: tl.constexpr,
    has_warm: tl.constexpr,
    has_edits: tl.constexpr,
    tile: tl.constexpr,
    num_tiles: tl.constexpr,
    padded_tiles: tl.constexpr,
) -> None:
    """The choice of one row.

    Changes: `token_ids` int64 [R]; `answers` int32 [3, R]: token, fault, bits of the
    log-probability.
    """
    row = tl.program_id(0).to(tl.int64)
    settings = table + row * _NUM_FIELDS
    tiles = tl.arange(0, padded_tiles)
    known = tiles < num_tiles
    here = row * num_tiles + tiles
    peak = tl.max(tl.load(peaks + here, mask=known, other=float("-inf")), axis=0)
    tops = tl.load(best + here, mask=known, other=float("-inf"))
    top = tl.max(tops, axis=0)
    ids = tl.load(best_ids + here, mask=known, other=_BEYOND)
    chosen = tl.min(tl.where(tops == top, ids, _BEYOND), axis=0)
    fault = tl.where(top == float("-inf"), 2, 0)
    fault = tl.where((peak - peak) == 0, fault, 1)
    chosen = tl.where(fault == 0, chosen, 0)
    if has_warm:
        temperature = tl.load(settings).to(tl.float64, bitcast=True)
        if (temperature > 0) & (fault == 0):
            chosen = _draw(
                weights + row * row_stride,
                heaviest + row * num_tiles,
                masses + row * num_tiles,
                settings,
                vocab_size,
                tile,
                num_tiles,
                padded_tiles,
            )
    tl.store(token_ids + row, chosen.to(tl.int64))
    tl.store(answers + row, chosen)
    tl.store(answers + num_rows + row, fault)
    if has_sums:
        place = row * row_stride + chosen
        logit = tl.load(logits + place)
        if has_edits:
            logit = _raw_logit(logit, place, settings, places, raw)
        peaks_here = tl.load(peaks + here, mask=known, other=float("-inf"))
        parts = tl.load(sums + here, mask=known, other=0.0)
        total = tl.sum(parts * tl.exp(peaks_here - peak), axis=0)
        logprob = logit - peak - tl.log(total)
        tl.store(answers + 2 * num_rows + row, logprob.to(tl.int32, bitcast=True))


@triton.jit
def _raw_logit(
    logit: tl.tensor,
    place: tl.tensor,
    settings: tl.tensor,
    places: tl.tensor,
    raw: tl.tensor,
) -> tl.tensor:
    """The logit at `place` as it was before the row's edits."""
    first, end = tl.load(settings + 7), tl.load(settings + 8)
    for begin in range(first, end, 256):
        entry = begin + tl.arange(0, 256)
        inside = entry < end
        match = (tl.load(places + entry, mask=inside, other=-1) == place) & inside
        old = tl.load(raw + entry, mask=match, other=float("-inf"))
        hit = tl.max(match.to(tl.int32), axis=0)
        logit = tl.where(hit > 0, tl.max(old, axis=0), logit)
    return logit
