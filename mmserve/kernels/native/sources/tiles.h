/* What attention does with one tile of keys: scores, weights, and weighted values.

   Scores lie [key][row] for many rows and [row][key] for few; attention.c tells when. */

#ifndef MMSERVE_TILES_H
#define MMSERVE_TILES_H

#include "common.h"

#define LANES (VW == 8 ? 16 : 4 * VW) /* rows whose scores stay in registers: VW 8 has 16 only */
#define VECS (LANES / VW)
#define SOME_KEYS 6
#define MORE_KEYS 12   /* of one vector of rows, so that sums do not wait for each other */
#define TILE 72        /* keys of a tile with many rows, a multiple of MORE_KEYS */
#define LONG_TILE 80  /* keys of a tile with few rows, a multiple of 4 and VW, not below TILE */
#define NUM_POINTERS (LONG_TILE + MORE_KEYS) /* of a tile and what is fetched early behind it */
#define MOST_FEW (VW == 16 ? 9 : 5)
#define UNSEEN -1e30f
_Static_assert(LONG_TILE >= TILE && LONG_TILE % VW == 0 && TILE % MORE_KEYS == 0, "tiles");

#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (ivec){__VA_ARGS__})
#endif

/* Vectors of a head; if D is no multiple of VW the last two overlap. */
INLINE long num_vecs(long size) { return (size + VW - 1) / VW; }
INLINE long vec_at(long i, long size) { return i * VW + VW <= size ? i * VW : max_long(size - VW, 0); }

/* Scores [num_keys][LANES] of num_vecs * VW rows; both numbers are known to the compiler. */
INLINE void score_tile(int vecs, int num_keys, const float *turned, long row_step, long size,
                       const float *const *keys, float *scores) {
    vec sum[MORE_KEYS][VECS];
    const float *key[MORE_KEYS];
#pragma GCC unroll 12
    for (int k = 0; k < num_keys; k++) {
        key[k] = keys[k];
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++) sum[k][v] = zero();
    }
    for (long d = 0; d < size; d++, turned += row_step) {
        vec query[VECS];
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++) query[v] = load(turned + v * VW);
#pragma GCC unroll 12
        for (int k = 0; k < num_keys; k++) {
            vec number = all(key[k][d]);
#pragma GCC unroll 4
            for (int v = 0; v < vecs; v++) sum[k][v] += query[v] * number;
        }
    }
#pragma GCC unroll 12
    for (int k = 0; k < num_keys; k++)
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++) store(scores + k * LANES + v * VW, sum[k][v]);
}

static void score_lanes(int vecs, const float *turned, long row_step, long size,
                        const float *const *keys, long num_keys, float *scores) {
    for (long k = 0; k < num_keys; k += vecs == 1 ? MORE_KEYS : SOME_KEYS) {
        float *to = scores + k * LANES;
        if (vecs == 1) score_tile(1, MORE_KEYS, turned, row_step, size, keys + k, to);
        else if (vecs == 2) score_tile(2, SOME_KEYS, turned, row_step, size, keys + k, to);
#if VECS == 4
        else if (vecs == 3) score_tile(3, SOME_KEYS, turned, row_step, size, keys + k, to);
        else score_tile(4, SOME_KEYS, turned, row_step, size, keys + k, to);
#endif
    }
}

INLINE vec bent(vec score, float softcap) {
    return softcap > 0 ? softcap * vtanh(score / softcap) : score;
}

/* Turn scores [num_keys][LANES] to weights and bring top, total and fade of the rows up to date.
   Positions of the keys begin at `position`; without a mask all are seen. */
INLINE void weigh_lanes(int vecs, int is_masked, float *scores, long num_keys, long position,
                        float softcap, const int32_t *low, const int32_t *high, float *top,
                        float *total, float *fade) {
    vec best[VECS], sum[VECS];
    ivec from[VECS], to[VECS];
#pragma GCC unroll 4
    for (int v = 0; v < vecs; v++) {
        best[v] = load(top + v * VW);
        if (is_masked) {
            from[v] = *(const loose_ivec *)(low + v * VW);
            to[v] = *(const loose_ivec *)(high + v * VW);
        }
    }
    for (long k = 0; k < num_keys; k++) {
        ivec here = iall((int32_t)(position + k));
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++) {
            float *at = scores + k * LANES + v * VW;
            vec score = load(at);
            if (softcap > 0) score = bent(score, softcap);
            if (is_masked) score = choose((from[v] <= here) & (to[v] > here), score, all(UNSEEN));
            if (softcap > 0 || is_masked) store(at, score);
            best[v] = vmax(best[v], score);
        }
    }
#pragma GCC unroll 4
    for (int v = 0; v < vecs; v++) {
        vec faded = vexp(load(top + v * VW) - best[v]);
        store(top + v * VW, best[v]);
        store(fade + v * VW, faded);
        sum[v] = load(total + v * VW) * faded;
    }
    for (long k = 0; k < num_keys; k++) {
        ivec here = iall((int32_t)(position + k));
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++) {
            float *at = scores + k * LANES + v * VW;
            vec weight = vexp(load(at) - best[v]);
            if (is_masked) weight = choose((from[v] <= here) & (to[v] > here), weight, zero());
            store(at, weight);
            sum[v] += weight;
        }
    }
#pragma GCC unroll 4
    for (int v = 0; v < vecs; v++) store(total + v * VW, sum[v]);
}

/* sums[r] = sums[r] * fade[r] + weights of row r times values, for some rows and vectors.

   Weights of a row are key_step apart, those of rows row_step. */
INLINE void add_some(int rows, int vecs, const float *weights, long row_step, long key_step,
                     const float *const *values, const long *at, long num_keys, const float *fade,
                     float *sums, long width) {
    vec sum[6][4];
    long offset[4];
#pragma GCC unroll 4
    for (int v = 0; v < vecs; v++) offset[v] = at[v];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++) sum[r][v] = load(sums + r * width + v * VW) * fade[r];
    for (long k = 0; k < num_keys; k++, weights += key_step) {
        vec value[4];
        const float *from = values[k];
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++) value[v] = load(from + offset[v]);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            vec weight = all(weights[r * row_step]);
#pragma GCC unroll 4
            for (int v = 0; v < vecs; v++) sum[r][v] += weight * value[v];
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++) store(sums + r * width + v * VW, sum[r][v]);
}

#define ADD(rows, vecs) \
    add_some(rows, vecs, weights, row_step, key_step, values, at, num_keys, fade, sums, width)
#if VECS == 4
#define ADD_ROWS(rows)                                                      \
    if (vecs == 4) ADD(rows, 4);                                            \
    else if (vecs == 3) ADD(rows, 3);                                       \
    else if (vecs == 2) ADD(rows, 2);                                       \
    else ADD(rows, 1)
#else
#define ADD_ROWS(rows)                                                      \
    if (vecs == 2) ADD(rows, 2);                                            \
    else ADD(rows, 1)
#endif

static void add_rows(long rows, int vecs, const float *weights, long row_step, long key_step,
                     const float *const *values, const long *at, long num_keys,
                     const float *fade, float *sums, long width) {
    switch (rows) {
    case 1: ADD_ROWS(1); break;
    case 2: ADD_ROWS(2); break;
    case 3: ADD_ROWS(3); break;
    case 4: ADD_ROWS(4); break;
    case 5: ADD_ROWS(5); break;
    default: ADD_ROWS(6);
    }
}

/* The weighted values of `rows` rows, cut into pieces that fit the registers. */
static void add_values(long rows, long size, const float *weights, long row_step, long key_step,
                       const float *const *values, long num_keys, const float *fade, float *sums,
                       long width) {
    long vecs = num_vecs(size), num_pieces = (vecs + VECS - 1) / VECS;
    for (long r = 0; r < rows; r += 6) {
        long first = 0;
        for (long piece = 0; piece < num_pieces; piece++) {
            long end = vecs * (piece + 1) / num_pieces, at[VECS];
            for (long v = first; v < end; v++) at[v - first] = vec_at(v, size);
            add_rows(min_long(rows - r, 6), (int)(end - first), weights + r * row_step, row_step,
                     key_step, values, at, num_keys, fade + r, sums + r * width + first * VW, width);
            first = end;
        }
    }
}

/* Sums of four vectors, side by side. */
INLINE void store_four_sums(float *to, vec a, vec b, vec c, vec d) {
#if VW == 16
    vec ab = SHUFFLE(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29) +
             SHUFFLE(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    vec cd = SHUFFLE(c, d, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29) +
             SHUFFLE(c, d, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    vec low = SHUFFLE(ab, cd, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
    vec high = SHUFFLE(ab, cd, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    vec sum = low + high;
    sum += SHUFFLE(sum, sum, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    sum += SHUFFLE(sum, sum, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
#elif VW == 8
    vec ab = SHUFFLE(a, b, 0, 8, 1, 9, 4, 12, 5, 13) + SHUFFLE(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
    vec cd = SHUFFLE(c, d, 0, 8, 1, 9, 4, 12, 5, 13) + SHUFFLE(c, d, 2, 10, 3, 11, 6, 14, 7, 15);
    vec sum = SHUFFLE(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13) + SHUFFLE(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15);
    sum += SHUFFLE(sum, sum, 4, 5, 6, 7, 0, 1, 2, 3);
#else
    vec ab = SHUFFLE(a, b, 0, 4, 1, 5) + SHUFFLE(a, b, 2, 6, 3, 7);
    vec cd = SHUFFLE(c, d, 0, 4, 1, 5) + SHUFFLE(c, d, 2, 6, 3, 7);
    vec sum = SHUFFLE(ab, cd, 0, 1, 4, 5) + SHUFFLE(ab, cd, 2, 3, 6, 7);
#endif
    memcpy(to, &sum, 16);
}

/* Scores of a few rows on four keys. */
INLINE void score_four(int rows, const float *queries, long width, long size,
                       const float *const *keys, float *scores) {
    const float *a = keys[0], *b = keys[1], *c = keys[2], *d = keys[3];
    vec sum[4][4];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = zero();
    for (long v = 0; v < width; v += VW) {
        long at = v + VW <= size ? v : max_long(size - VW, 0);
        vec ka = load(a + at), kb = load(b + at), kc = load(c + at), kd = load(d + at);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            vec query = load(queries + r * width + v);
            sum[r][0] += query * ka;
            sum[r][1] += query * kb;
            sum[r][2] += query * kc;
            sum[r][3] += query * kd;
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        store_four_sums(scores + r * LONG_TILE, sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
}

#define MOST_DOTS (VW == 8 ? 2 : 4) /* rows of one product of score_four */

static void score_few(long rows, const float *queries, long width, long size,
                      const float *const *keys, const float *const *values, long num_keys,
                      float *scores) {
    for (long k = 0; k < num_keys; k += 4) {
        for (int i = 0; i < 4; i++)
            for (long d = 0; d < size; d += 16) {
                __builtin_prefetch(keys[k + 8 + i] + d);
                __builtin_prefetch(values[k + i] + d);
            }
        for (long r = 0; r < rows; r += MOST_DOTS) {
            const float *query = queries + r * width;
            float *to = scores + r * LONG_TILE + k;
            switch (min_long(rows - r, MOST_DOTS)) {
            case 1: score_four(1, query, width, size, keys + k, to); break;
            case 2: score_four(2, query, width, size, keys + k, to); break;
#if VW != 8
            case 3: score_four(3, query, width, size, keys + k, to); break;
            default: score_four(4, query, width, size, keys + k, to);
#endif
            }
        }
    }
}

/* As weigh_lanes, for one row whose keys lie side by side: scores [round_up(num_keys, VW)]. */
static void weigh_row(float *scores, long num_keys, long position, float softcap, int32_t low,
                      int32_t high, float *top, float *total, float *fade) {
    int32_t places[VW];
    for (int i = 0; i < VW; i++) places[i] = i;
    ivec place = *(const loose_ivec *)places;
    int32_t first = (int32_t)max_long(low - position, 0);
    int32_t end = (int32_t)min_long(high - position, num_keys);
    vec best = all(*top), sum = zero();
    for (long k = 0; k < num_keys; k += VW) {
        ivec here = place + iall((int32_t)k);
        vec score = load(scores + k);
        if (softcap > 0) score = bent(score, softcap);
        score = choose((here >= first) & (here < end), score, all(UNSEEN));
        store(scores + k, score);
        best = vmax(best, score);
    }
    float most = max_of(best);
    for (long k = 0; k < num_keys; k += VW) {
        ivec here = place + iall((int32_t)k);
        vec weight = choose((here >= first) & (here < end), vexp(load(scores + k) - most), zero());
        store(scores + k, weight);
        sum += weight;
    }
    *fade = expf(*top - most);
    *top = most;
    *total = *total * *fade + sum_of(sum);
}

#endif
