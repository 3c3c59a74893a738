/* Paged attention of one layer on float32, and what writes its keys and values.

   The work is cut into blocks of neighbouring places, and a block's keys into ranges if there are
   few blocks. A block has one row a place and query head of the KV head. A thread takes a block, a
   range of positions and a KV head, goes over the segments below it in tiles of keys, and keeps
   for each row the largest score, the sum of weights and the weighted sum of values, as in "Online
   normalizer calculation for softmax" (2018) and FlashAttention (2022). Keys and values are read
   where they lie, through a pointer a slot.

       many rows    scores [key][row]: queries turned over once a block, a row in each lane
       few rows     scores [row][key]: dot products along D, four keys at once

   Ranges of one block are joined in their order, so outputs do not depend on the threads. */

#include "common.h"
#include <pthread.h>
#include <stdlib.h>

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

/* The step's reading as mmserve/kernels/native/attention.py lays it out. */
typedef struct {
    long num_groups, heads, size, num_items, num_splits, most_rows, num_partial_rows;
    const int64_t *order;          /* query of each place */
    const int32_t *low, *high;     /* positions that each place sees */
    const int64_t *first_place, *end_place, *first_position, *first_slot; /* of each segment */
    const int64_t *slots;
    const int64_t *block_place;    /* first place of each block, and the end */
    const int64_t *block_entry;    /* first entry of each block in block_segment, and the end */
    const int64_t *block_segment;
    const int64_t *item_block, *item_low, *item_high; /* block and positions of each item */
    const int64_t *item_partial;   /* first row of its partial outputs, or -1 */
    const int64_t *split_item;     /* first item of each split block */
    const int64_t *split_num;      /* how many items it has */
    float *partial;                /* [num_groups, num_partial_rows, 2 + width] */
    const float *keys, *values;    /* of layer 0 */
    long layer_step, group_step, slot_step; /* floats from one to the next */
    float softcap;                 /* 0 if there is none */
} Reading;

typedef struct {
    const float *queries;
    float *out; /* [T, H, D] */
    long query_step, head_step; /* floats from a query or head to the next */
    const float *keys, *values;
} Layer;

/* What a thread works in; rows of `sums` and `queries` are `width` wide. */
typedef struct {
    long width, row_step;
    float *queries;         /* [rows][width], scaled */
    float *turned;          /* [D][row_step] */
    float *sums;            /* [rows][width] */
    float *top, *total, *fade;
    int32_t *low, *high;    /* of each row */
    float *scores, *copies;
    const float **keys, **values;
} Room;

INLINE long round_up(long value, long unit) { return (value + unit - 1) / unit * unit; }

/* Vectors of a head; if D is no multiple of VW the last two overlap. */
INLINE long num_vecs(long size) { return (size + VW - 1) / VW; }
INLINE long vec_at(long i, long size) { return i * VW + VW <= size ? i * VW : max_long(size - VW, 0); }

static pthread_key_t room_key;
static pthread_once_t room_once = PTHREAD_ONCE_INIT;
static _Thread_local char *room_memory;
static _Thread_local size_t room_bytes;

static void make_room_key(void) { pthread_key_create(&room_key, free); }

/* The calling thread's own memory, kept from layer to layer; NULL if there is none left. */
static char *memory_of(size_t num_bytes) {
    if (room_bytes < num_bytes) {
        pthread_once(&room_once, make_room_key);
        free(room_memory);
        room_memory = aligned_alloc(64, (size_t)round_up((long)num_bytes, 4096));
        room_bytes = room_memory ? num_bytes : 0;
        pthread_setspecific(room_key, room_memory);
    }
    return room_memory;
}

static int find_room(Room *room, const Reading *reading) {
    long rows = reading->most_rows, size = reading->size;
    long width = num_vecs(size) * VW, row_step = round_up(rows + 2 * VW, 16);
    long most_scores = max_long(TILE * LANES, MOST_FEW * LONG_TILE);
    long num_floats = 2 * rows * width + size * row_step + 5 * row_step + most_scores;
    if (size < VW) num_floats += 2 * NUM_POINTERS * VW;
    long num_pointers = 2 * NUM_POINTERS;
    float *next = (float *)memory_of((size_t)(4 * num_floats) + (size_t)num_pointers * sizeof(void *));
    if (!next) return 0;
    room->width = width;
    room->row_step = row_step;
    room->keys = (const float **)next, next += num_pointers * (long)(sizeof(void *) / 4);
    room->values = room->keys + num_pointers / 2;
    room->scores = next, next += most_scores;
    room->queries = next, next += rows * width;
    room->sums = next, next += rows * width;
    room->turned = next, next += size * row_step;
    room->top = next, next += row_step;
    room->total = next, next += row_step;
    room->fade = next, next += row_step;
    room->low = (int32_t *)next, next += row_step;
    room->high = (int32_t *)next, next += row_step;
    room->copies = next;
    return 1;
}

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

/* Rows [row, row + num) on a tile of many rows. */
static void read_many(const Reading *reading, Room *room, long row, long num, long num_keys,
                      long position, int is_masked) {
    for (long r = row; r < row + num; r += LANES) {
        long here = min_long(row + num - r, LANES), vecs = (here + VW - 1) / VW;
        float kept_top[VW], kept_total[VW]; /* of the rows behind, whose lanes are used as well */
        float *behind_top = room->top + r + here, *behind_total = room->total + r + here;
        memcpy(kept_top, behind_top, sizeof kept_top);
        memcpy(kept_total, behind_total, sizeof kept_total);
        score_lanes((int)vecs, room->turned + r, room->row_step, reading->size, room->keys, num_keys,
                    room->scores);
#define WEIGH(vecs, is_masked)                                                                  \
    weigh_lanes(vecs, is_masked, room->scores, num_keys, position, reading->softcap,            \
                room->low + r, room->high + r, room->top + r, room->total + r, room->fade + r)
        if (vecs == VECS && !is_masked) WEIGH(VECS, 0);
        else if (vecs == VECS) WEIGH(VECS, 1);
        else if (vecs == 1) WEIGH(1, 1);
        else if (vecs == 2) WEIGH(2, 1);
        else WEIGH(VECS - 1, 1);
        memcpy(behind_top, kept_top, sizeof kept_top);
        memcpy(behind_total, kept_total, sizeof kept_total);
        add_values(here, reading->size, room->scores, 1, LANES, room->values, num_keys,
                   room->fade + r, room->sums + r * room->width, room->width);
    }
}

/* The same on a tile of few rows. */
static void read_few(const Reading *reading, Room *room, long row, long num, long num_keys,
                     long position) {
    score_few(num, room->queries + row * room->width, room->width, reading->size, room->keys,
              room->values, num_keys, room->scores);
    for (long r = row; r < row + num; r++)
        weigh_row(room->scores + (r - row) * LONG_TILE, num_keys, position, reading->softcap,
                  room->low[r], room->high[r], room->top + r, room->total + r, room->fade + r);
    add_values(num, reading->size, room->scores, LONG_TILE, 1, room->values, num_keys,
               room->fade + row, room->sums + row * room->width, room->width);
}

/* Point at the keys and values of a tile and a few behind it: those of the `num_slots` that follow,
   so that they can be fetched early, or the last one again. */
static void point(const Reading *reading, const Layer *layer, Room *room, long group,
                  const int64_t *slots, long num_keys, long num_slots) {
    const float *keys = layer->keys + group * reading->group_step;
    const float *values = layer->values + group * reading->group_step;
    for (long k = 0; k < num_keys + MORE_KEYS; k++) {
        long at = slots[min_long(k, num_slots - 1)] * reading->slot_step;
        room->keys[k] = keys + at;
        room->values[k] = values + at;
    }
    if (reading->size >= VW) return;
    for (long k = 0; k < num_keys + MORE_KEYS; k++) { /* heads narrower than a vector */
        float *key = room->copies + k * 2 * VW, *value = key + VW;
        store(key, load_some(room->keys[k], reading->size, 0));
        store(value, load_some(room->values[k], reading->size, 0));
        room->keys[k] = key;
        room->values[k] = value;
    }
}

/* Whether a segment has many rows of the block. */
static int has_many(const Reading *reading, long block) {
    long first_place = reading->block_place[block], end_place = reading->block_place[block + 1];
    for (long i = reading->block_entry[block]; i < reading->block_entry[block + 1]; i++) {
        long segment = reading->block_segment[i];
        long first = max_long(reading->first_place[segment], first_place);
        long end = min_long(reading->end_place[segment], end_place);
        if ((end - first) * reading->heads > MOST_FEW) return 1;
    }
    return 0;
}

/* Queries of a block's rows, scaled, and turned over if need be; rows behind the last are zero. */
static void take_queries(const Reading *reading, const Layer *layer, Room *room, long block,
                         long group) {
    long first = reading->block_place[block], num = reading->block_place[block + 1] - first;
    long heads = reading->heads, size = reading->size, rows = num * heads;
    float scale = 1 / sqrtf((float)size);
    int is_turned = has_many(reading, block);
    memset(room->queries, 0, 4 * (size_t)(rows * room->width));
    for (long r = 0; r < rows; r++) {
        long place = first + r / heads, head = group * heads + r % heads;
        const float *query =
            layer->queries + reading->order[place] * layer->query_step + head * layer->head_step;
        float *to = room->queries + r * room->width;
        long last = (num_vecs(size) - 1) * VW, at = vec_at(num_vecs(size) - 1, size);
        for (long d = 0; d < last; d++) to[d] = query[d] * scale;
        for (long d = last; d < size; d++) to[last + d - at] = query[d] * scale;
        for (long d = 0; is_turned && d < size; d++)
            room->turned[d * room->row_step + r] = query[d] * scale;
        room->low[r] = reading->low[place];
        room->high[r] = reading->high[place];
    }
    for (long d = 0; is_turned && d < size; d++)
        for (long r = rows; r < rows + VW; r++) room->turned[d * room->row_step + r] = 0;
    for (long r = 0; r < rows + VW; r++) {
        room->top[r] = UNSEEN;
        room->total[r] = 0;
        if (r >= rows) room->low[r] = room->high[r] = 0;
    }
    memset(room->sums, 0, 4 * (size_t)(rows * room->width));
}

/* Places [first, end) of the block, counted from its own first, read a tile of a segment. */
static void read_tile(const Reading *reading, Room *room, long first, long end, long num_keys,
                      long position) {
    long heads = reading->heads;
    const int32_t *low = room->low, *high = room->high;
    while (first < end && (high[first * heads] <= position ||
                           low[first * heads] >= position + num_keys)) first++;
    while (first < end && (high[(end - 1) * heads] <= position ||
                           low[(end - 1) * heads] >= position + num_keys)) end--;
    if (first == end) return;
    int is_masked = 0;
    for (long place = first; place < end; place++)
        is_masked |= low[place * heads] > position || high[place * heads] < position + num_keys;
    long row = first * heads, num = (end - first) * heads;
    if (num <= MOST_FEW) read_few(reading, room, row, num, num_keys, position);
    else read_many(reading, room, row, num, num_keys, position, is_masked);
}

/* All that a block reads of positions [low, high). */
static void read_block(const Reading *reading, const Layer *layer, Room *room, long block,
                       long group, long low, long high) {
    long first_place = reading->block_place[block], end_place = reading->block_place[block + 1];
    for (long i = reading->block_entry[block]; i < reading->block_entry[block + 1]; i++) {
        long segment = reading->block_segment[i], position = reading->first_position[segment];
        const int64_t *slots = reading->slots + reading->first_slot[segment] - position;
        long end = position + reading->first_slot[segment + 1] - reading->first_slot[segment];
        long first = max_long(reading->first_place[segment], first_place) - first_place;
        long last = min_long(reading->end_place[segment], end_place) - first_place;
        long tile = (last - first) * reading->heads <= MOST_FEW ? LONG_TILE : TILE;
        end = min_long(end, high);
        for (long at = max_long(position, low); at < end; at += tile) {
            long num_keys = min_long(end - at, tile);
            point(reading, layer, room, group, slots + at, num_keys, end - at);
            read_tile(reading, room, first, last, num_keys, at);
        }
    }
}

/* One row's output of D floats from `sums` as they lie in the room. */
INLINE void put_out(float *out, const float *sums, float factor, long size) {
    long vecs = num_vecs(size);
    if (size < VW) {
        store_some(out, load(sums) * factor, size);
        return;
    }
    for (long v = 0; v < vecs; v++) store(out + vec_at(v, size), load(sums + v * VW) * factor);
}

INLINE float *out_of(const Reading *reading, const Layer *layer, long block, long group, long row) {
    long place = reading->block_place[block] + row / reading->heads;
    long head = group * reading->heads + row % reading->heads;
    long num_heads = reading->num_groups * reading->heads;
    return layer->out + (reading->order[place] * num_heads + head) * reading->size;
}

INLINE long rows_of(const Reading *reading, long block) {
    return (reading->block_place[block + 1] - reading->block_place[block]) * reading->heads;
}

static void attend_item(const Reading *reading, const Layer *layer, Room *room, long item,
                        long group) {
    long block = reading->item_block[item], rows = rows_of(reading, block), width = room->width;
    take_queries(reading, layer, room, block, group);
    read_block(reading, layer, room, block, group, reading->item_low[item], reading->item_high[item]);
    if (reading->item_partial[item] < 0) {
        for (long r = 0; r < rows; r++)
            put_out(out_of(reading, layer, block, group, r), room->sums + r * width,
                    1 / room->total[r], reading->size);
        return;
    }
    float *to = reading->partial +
                (group * reading->num_partial_rows + reading->item_partial[item]) * (2 + width);
    for (long r = 0; r < rows; r++, to += 2 + width) {
        to[0] = room->top[r];
        to[1] = room->total[r];
        memcpy(to + 2, room->sums + r * width, 4 * (size_t)width);
    }
}

/* Join the partial outputs of a split block's items, in their order. */
static void join_items(const Reading *reading, const Layer *layer, Room *room, long split, long group) {
    long item = reading->split_item[split], num = reading->split_num[split];
    long block = reading->item_block[item], rows = rows_of(reading, block), width = room->width;
    const float *from =
        reading->partial +
        (group * reading->num_partial_rows + reading->item_partial[item]) * (2 + width);
    long step = rows * (2 + width);
    for (long r = 0; r < rows; r++, from += 2 + width) {
        float top = UNSEEN, total = 0, *sums = room->sums;
        for (long i = 0; i < num; i++) top = from[i * step] > top ? from[i * step] : top;
        memset(sums, 0, 4 * (size_t)width);
        for (long i = 0; i < num; i++) {
            const float *part = from + i * step;
            float weight = expf(part[0] - top);
            total += part[1] * weight;
            for (long d = 0; d < width; d += VW)
                store(sums + d, load(sums + d) + load(part + 2 + d) * weight);
        }
        put_out(out_of(reading, layer, block, group, r), sums, 1 / total, reading->size);
    }
}

/* Attend at one layer; 0 if all went well, else there is no memory.

   Queries are [T, H, D], whose steps are floats from one to the next; `out` is in one piece. */
EXPORT int mmserve_attend(const Reading *reading, long number, const float *queries,
                          long query_step, long head_step, float *out, int num_threads) {
    const Layer this = {
        .queries = queries,
        .out = out,
        .query_step = query_step,
        .head_step = head_step,
        .keys = reading->keys + number * reading->layer_step,
        .values = reading->values + number * reading->layer_step,
    };
    const Layer *layer = &this;
    long num_work = reading->num_items * reading->num_groups, failed = 0;
    long num_joins = reading->num_splits * reading->num_groups;
    num_threads = (int)min_long(num_threads, num_work);
#pragma omp parallel num_threads(num_threads) if (num_threads > 1) reduction(+ : failed)
    {
        Room room;
        int is_ready = find_room(&room, reading);
        failed += !is_ready;
#pragma omp for schedule(dynamic, 1)
        for (long work = 0; work < num_work; work++) {
            long item = reading->num_items - 1 - work % reading->num_items; /* longest first */
            if (is_ready) attend_item(reading, layer, &room, item, work / reading->num_items);
        }
#pragma omp for schedule(static)
        for (long work = 0; work < num_joins; work++)
            if (is_ready)
                join_items(reading, layer, &room, work / reading->num_groups,
                           work % reading->num_groups);
    }
    return failed != 0;
}

/* Where new keys and values go. */
typedef struct {
    float *keys, *values;
    long group_step, slot_step;
    long num_tokens, num_groups, size;
    const int64_t *slots;
} Target;

/* Store one head of a token. */
INLINE void put_head(float *to, const float *from, long size) {
    for (long d = 0; d < size; d++) to[d] = from[d];
}

#define MANY_FLOATS 32768 /* fewer are moved by one thread */

/* Store [T, G, D] keys and values; steps are floats from a token or head to the next. */
EXPORT void mmserve_write_kv(const Target *target, const float *keys, long key_token_step,
                            long key_head_step, const float *values, long value_token_step,
                            long value_head_step, int num_threads) {
    long size = target->size, num_groups = target->num_groups;
    int is_small = target->num_tokens * num_groups * size < MANY_FLOATS;
#pragma omp parallel for num_threads(num_threads) if (num_threads > 1 && !is_small)
    for (long t = 0; t < target->num_tokens; t++)
        for (long g = 0; g < num_groups; g++) {
            long at = g * target->group_step + target->slots[t] * target->slot_step;
            put_head(target->keys + at, keys + t * key_token_step + g * key_head_step, size);
            put_head(target->values + at, values + t * value_token_step + g * value_head_step, size);
        }
}

/* Turn `num_heads` heads in place: pairs are num_pairs apart. */
INLINE void turn(float *restrict heads, long num_heads, long size, const float *restrict cos,
                 const float *restrict sin, long num_pairs) {
    for (long h = 0; h < num_heads; h++, heads += size) {
        float *restrict first = heads, *restrict second = heads + num_pairs;
        for (long i = 0; i < num_pairs; i++) {
            float a = first[i], b = second[i];
            first[i] = a * cos[i] - b * sin[i];
            second[i] = b * cos[i] + a * sin[i];
        }
    }
}

/* Turn queries and keys of fused [T, H + 2 G, D] in place and store keys and values.

   Cosines and sines are [T, num_pairs], angle_step floats from a token to the next. */
EXPORT void mmserve_turn_and_write(const Target *target, float *fused, long token_step,
                                     long num_heads, const float *cos, const float *sin,
                                     long angle_step, long num_pairs, int num_threads) {
    long size = target->size, num_groups = target->num_groups;
    int is_small = target->num_tokens * (num_heads + 2 * num_groups) * size < MANY_FLOATS;
#pragma omp parallel for num_threads(num_threads) if (num_threads > 1 && !is_small)
    for (long t = 0; t < target->num_tokens; t++) {
        float *token = fused + t * token_step, *keys = token + num_heads * size;
        if (num_pairs)
            turn(token, num_heads + num_groups, size, cos + t * angle_step, sin + t * angle_step,
                 num_pairs);
        for (long g = 0; g < num_groups; g++) {
            long at = g * target->group_step + target->slots[t] * target->slot_step;
            put_head(target->keys + at, keys + g * size, size);
            put_head(target->values + at, keys + (num_groups + g) * size, size);
        }
    }
}
