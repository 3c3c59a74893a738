/* Tiles of a product: rows x one panel of a packed weight, whose sums stay in registers.

   products.c tells how a weight lies, and why every sum has the order that it has here. */

#ifndef MMSERVE_PANELS_H
#define MMSERVE_PANELS_H

#include "weights.h"

#if defined(__AVX512F__) || defined(__aarch64__)
#define MR 12 /* 32 registers: 24 sums, two vectors of weights */
#else
#define MR 6
#endif

enum activation { NONE, GELU, GELU_TANH, QUICK_GELU, RELU, SILU };

/* ------------------------------------------------------------------- what follows the sums */

/* gelu by the error function: 0.5 x erfc(-x / sqrt 2), |error| < 2e-7 |x|.
   Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26, 1964. */
INLINE vec gelu(vec x) {
    vec z = vabs(x) * 0.70710678f;
    vec t = 1.0f / (z * 0.3275911f + 1.0f);
    vec p = t * 1.061405429f - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    vec tail = p * t * vexp(-(z * z)) * 0.5f;
    return x * choose(x < zero(), tail, 1.0f - tail);
}

INLINE vec gelu_tanh(vec x) {
    vec u = x * 0.79788456f * (x * x * 0.044715f + 1.0f);
    return x * vsigmoid(u + u);
}

INLINE vec activated(vec x, int kind) {
    switch (kind) {
    case GELU: return gelu(x);
    case GELU_TANH: return gelu_tanh(x);
    case QUICK_GELU: return x * vsigmoid(x * 1.702f);
    case RELU: return choose(x < zero(), zero(), x);
    case SILU: return x * vsigmoid(x);
    default: return x;
    }
}

INLINE void finish_as(float *y, long row_size, long rows, long columns, const float *bias,
                      const int kind) {
    for (long r = 0; r < rows; r++)
        for (long c = 0; c < columns; c += VW) {
            float *to = y + r * row_size + c;
            long num = min_long(columns - c, VW);
            vec value = num == VW ? load(to) : load_some(to, num, 0.0f);
            if (bias) value += load(bias + c);
            value = activated(value, kind);
            if (num == VW) store(to, value);
            else store_some(to, value, num);
        }
}

/* Adds the bias and activates rows x columns of sums. Changes: y. */
static __attribute__((noinline)) void finish(float *y, long row_size, long rows, long columns,
                                             const float *bias, int kind) {
    switch (kind) {
    case GELU: finish_as(y, row_size, rows, columns, bias, GELU); break;
    case GELU_TANH: finish_as(y, row_size, rows, columns, bias, GELU_TANH); break;
    case QUICK_GELU: finish_as(y, row_size, rows, columns, bias, QUICK_GELU); break;
    case RELU: finish_as(y, row_size, rows, columns, bias, RELU); break;
    case SILU: finish_as(y, row_size, rows, columns, bias, SILU); break;
    default: finish_as(y, row_size, rows, columns, bias, NONE);
    }
}

/* ------------------------------------------------------------------------------------ tiles */

/* Where a tile stands: `depth` inputs of `x`, the panel's weights for them, sums in `y`. */
struct place {
    const float *x;
    long x_size;
    const void *weights;
    const uint16_t *scales;
    long depth;
    float *y;
    long y_size;
    long columns;
    int is_first;      /* the sums begin here; else they go on from y */
    const char *ahead; /* the weights that come next, */
    long stride;       /* bytes of them fetched at each input, unless these are codes */
};

INLINE void sums_from(vec sums[][2], const struct place *at, const int rows) {
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
        const float *y = at->y + r * at->y_size;
        if (at->is_first) {
            sums[r][0] = sums[r][1] = zero();
        } else if (at->columns == NR) {
            sums[r][0] = load(y);
            sums[r][1] = load(y + VW);
        } else {
            float whole[NR] = {0};
            memcpy(whole, y, 4 * (size_t)at->columns);
            sums[r][0] = load(whole);
            sums[r][1] = load(whole + VW);
        }
    }
}

INLINE void sums_to(const struct place *at, vec sums[][2], const int rows) {
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
        float *y = at->y + r * at->y_size;
        if (at->columns == NR) {
            store(y, sums[r][0]);
            store(y + VW, sums[r][1]);
        } else {
            float whole[NR];
            store(whole, sums[r][0]);
            store(whole + VW, sums[r][1]);
            memcpy(y, whole, 4 * (size_t)at->columns);
        }
    }
}

/* Pointers to every third row of x: two more are reached by an index, so that the loop spends no
   instruction on addresses. The empty assembler keeps the compiler from undoing this. */
#define GROUPS ((MR + 2) / 3)
struct readers {
    const float *rows[GROUPS];
    long x_size;
};

INLINE struct readers readers_of(const struct place *at, const int rows) {
    struct readers from = {{0}, at->x_size};
#pragma GCC unroll 4
    for (int g = 0; 3 * g < rows; g++) from.rows[g] = at->x + 3 * g * at->x_size;
    return from;
}

INLINE void add_input(vec sums[][2], struct readers *from, vec first, vec second,
                      const int rows) {
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
        vec value = all(from->rows[r / 3][r % 3 * from->x_size]);
        sums[r][0] += value * first;
        sums[r][1] += value * second;
    }
#pragma GCC unroll 4
    for (int g = 0; 3 * g < rows; g++) {
        from->rows[g]++;
        __asm__("" : "+r"(from->rows[g]));
    }
}

/* `num_bytes` of what comes next, into the second cache. */
INLINE void fetch_early(const char *from, const long num_bytes) {
    for (long at = 0; at < num_bytes; at += 64) __builtin_prefetch(from + at, 0, 2);
}

INLINE void tile_full(const struct place *at, const int rows) {
    vec sums[MR][2];
    struct readers from = readers_of(at, rows);
    sums_from(sums, at, rows);
    const float *weights = at->weights;
    const char *ahead = at->ahead;
    const int is_alone = at->stride > 2 * NR; /* no other tile fetches the rest */
    for (long i = 0; i < at->depth; i++) {
        __builtin_prefetch(ahead, 0, 2);
        if (is_alone) __builtin_prefetch(ahead + 2 * NR, 0, 2);
        ahead += at->stride;
        add_input(sums, &from, load(weights + i * NR),
                  load(weights + i * NR + VW), rows);
    }
    sums_to(at, sums, rows);
}

INLINE void tile_few(const struct place *at, const int rows, const int bits) {
    vec sums[MR][2];
    struct readers from = readers_of(at, rows);
    sums_from(sums, at, rows);
    const int8_t *codes = at->weights;
    const uint16_t *block = at->scales;
    const long step = at->ahead - (const char *)at->weights;
    for (long begin = 0; begin < at->depth; begin += BLOCK, block += NR) {
        struct scales scales = block_scales(block, bits);
        long num = min_long(BLOCK, at->depth - begin);
        for (long i = 0; i < num / 2; i++, codes += pair_bytes(bits)) {
            fetch_early((const char *)codes + step, pair_bytes(bits));
            struct inputs two = two_inputs(codes, &scales, bits);
            add_input(sums, &from, two.even[0], two.even[1], rows);
            add_input(sums, &from, two.odd[0], two.odd[1], rows);
        }
        if (num % 2) {
            struct inputs two = two_inputs(codes, &scales, bits);
            add_input(sums, &from, two.even[0], two.even[1], rows);
        }
    }
    sums_to(at, sums, rows);
}

#if MR == 12
#define EACH_ROWS(DO) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11) DO(12)
#else
#define EACH_ROWS(DO) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6)
#endif

#define TILES(ROWS) \
    static __attribute__((noinline)) void full_##ROWS(const struct place *at) { \
        tile_full(at, ROWS); \
    } \
    static __attribute__((noinline)) void eight_##ROWS(const struct place *at) { \
        tile_few(at, ROWS, 8); \
    } \
    static __attribute__((noinline)) void four_##ROWS(const struct place *at) { \
        tile_few(at, ROWS, 4); \
    }
EACH_ROWS(TILES)

typedef void (*tile)(const struct place *);
#define FULL(ROWS) full_##ROWS,
#define EIGHT(ROWS) eight_##ROWS,
#define FOUR(ROWS) four_##ROWS,
static const tile full_tiles[] = {EACH_ROWS(FULL)};
static const tile eight_tiles[] = {EACH_ROWS(EIGHT)};
static const tile four_tiles[] = {EACH_ROWS(FOUR)};

/* One row and `num` whole panels at once: as many streams from memory. */
#define STREAMS 4
INLINE void stream_full(const float *x, const float *weights, long depth, float *y) {
    vec sums[STREAMS][2];
#pragma GCC unroll 4
    for (int s = 0; s < STREAMS; s++) sums[s][0] = sums[s][1] = zero();
    for (long i = 0; i < depth; i++) {
        vec value = all(x[i]);
#pragma GCC unroll 4
        for (int s = 0; s < STREAMS; s++) {
            const float *from = weights + (s * depth + i) * NR;
            sums[s][0] += value * load(from);
            sums[s][1] += value * load(from + VW);
        }
    }
#pragma GCC unroll 4
    for (int s = 0; s < STREAMS; s++) {
        store(y + s * NR, sums[s][0]);
        store(y + s * NR + VW, sums[s][1]);
    }
}

INLINE void stream_input(vec sums[][2], float x, const struct inputs *inputs, const int is_odd) {
    vec value = all(x);
#pragma GCC unroll 4
    for (int s = 0; s < STREAMS; s++) {
        sums[s][0] += value * (is_odd ? inputs[s].odd[0] : inputs[s].even[0]);
        sums[s][1] += value * (is_odd ? inputs[s].odd[1] : inputs[s].even[1]);
    }
}

/* As `stream_full`; `size` bytes and `num_scales` scales are between panels. */
INLINE void stream_few(const float *x, const int8_t *codes, long size, const uint16_t *block,
                       long num_scales, long depth, float *y, const int bits) {
    vec sums[STREAMS][2];
    struct scales scales[STREAMS];
    struct inputs two[STREAMS];
#pragma GCC unroll 4
    for (int s = 0; s < STREAMS; s++) sums[s][0] = sums[s][1] = zero();
    for (long begin = 0; begin < depth; begin += BLOCK, block += NR) {
#pragma GCC unroll 4
        for (int s = 0; s < STREAMS; s++) scales[s] = block_scales(block + s * num_scales, bits);
        for (long i = begin; i < min_long(begin + BLOCK, depth); i += 2, codes += pair_bytes(bits)) {
#pragma GCC unroll 4
            for (int s = 0; s < STREAMS; s++) {
                fetch_early((const char *)codes + (STREAMS + s) * size, pair_bytes(bits));
                two[s] = two_inputs(codes + s * size, scales + s, bits);
            }
            stream_input(sums, x[i], two, 0);
            if (i + 1 < depth) stream_input(sums, x[i + 1], two, 1);
        }
    }
#pragma GCC unroll 4
    for (int s = 0; s < STREAMS; s++) {
        store(y + s * NR, sums[s][0]);
        store(y + s * NR + VW, sums[s][1]);
    }
}

static __attribute__((noinline)) void stream_eight(const float *x, const int8_t *codes, long size,
                                                   const uint16_t *block, long num_scales,
                                                   long depth, float *y) {
    stream_few(x, codes, size, block, num_scales, depth, y, 8);
}

static __attribute__((noinline)) void stream_four(const float *x, const int8_t *codes, long size,
                                                  const uint16_t *block, long num_scales,
                                                  long depth, float *y) {
    stream_few(x, codes, size, block, num_scales, depth, y, 4);
}

/* ------------------------------------------------------------- parts of weights of few bits */

/* Values of `depth` inputs of a panel, [depth][NR]; one more if that is odd. Changes: `values`. */
INLINE void unpack(const int8_t *codes, const uint16_t *block, long depth, float *values,
                   const int bits) {
    for (long begin = 0; begin < depth; begin += BLOCK, block += NR) {
        struct scales scales = block_scales(block, bits);
        for (long i = begin; i < min_long(begin + BLOCK, depth); i += 2) {
            struct inputs two = two_inputs(codes, &scales, bits);
            store(values, two.even[0]);
            store(values + VW, two.even[1]);
            store(values + NR, two.odd[0]);
            store(values + NR + VW, two.odd[1]);
            codes += pair_bytes(bits);
            values += 2 * NR;
        }
    }
}

#endif
