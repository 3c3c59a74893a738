/* What the parts of a layer share: their records and the functions that layers.c calls. */

#ifndef MMSERVE_PARTS_H
#define MMSERVE_PARTS_H

#include "team.h"

/* A packed weight; products.c tells how it lies. `_Product` of native/linear.py. */
struct product {
    const void *panels;
    const uint16_t *scales; /* NULL: float32 */
    const float *bias;      /* whole panels, NULL: none */
    int64_t num_inputs;
    int64_t num_outputs;
    int32_t bits; /* 32, 8, 4 */
    int32_t activation;
    int32_t parts; /* bfloat16 values that a float32 weight is the sum of: 1 to 3 */
};

/* The step's reading. `_Reading` of native/attention.py. */
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

/* Where new keys and values go. `_Target` of native/attention.py. */
typedef struct {
    float *keys, *values; /* of the layer that is written */
    long group_step, slot_step; /* floats from one to the next */
    long num_tokens, num_groups, size;
    const int64_t *slots;
} Target;

/* One member's part of each step of a layer. None of them meets the others at its end. */

/* Root-mean-square norm of rows [rows, size]. Changes: y. */
void norm_rows(const Member *me, const float *x, const float *gain, float *y, long rows, long size,
               float eps);

/* Norms of neighbouring heads, in place: `num_heads` of `size` floats for each of `rows` tokens,
   whose first heads are `row_step` floats apart; a head's result is that of `norm_rows`. */
void norm_heads(const Member *me, float *heads, const float *gain, long rows, long row_step,
                long num_heads, long size, float eps);

/* hidden += delta, then the norm of it, all [rows, size]. Changes: hidden, y. */
void add_norm_rows(const Member *me, float *hidden, const float *delta, const float *gain, float *y,
                   long rows, long size, float eps);

/* silu or, by the tanh approximation, gelu of the first half of rows [rows, 2 size], times the
   second half. Changes: y [rows, size]. */
void gate_rows(const Member *me, const float *gate_up, float *y, long rows, long size, int is_gelu);

/* Rows [rows, num_inputs] times the weight give [rows, num_outputs]. Changes: y. */
void multiply(const Member *me, const float *x, float *y, long rows, const struct product *product);

/* Cosines and sines [T, num_pairs] of one rotary embedding, `step` floats from a token to the
   next; no pairs: nothing is turned. */
typedef struct {
    const float *cos, *sin;
    int64_t num_pairs;
} Angles;

/* Turn queries and keys of fused [T, H + 2 G, D] in place and store keys and values. */
void turn_and_write(const Member *me, const Target *target, float *fused, long token_step,
                    long num_heads, const Angles *angles, long angle_step);

/* Queries of a layer and where its outputs go. */
typedef struct {
    long number; /* of the layer */
    const float *queries;       /* [T, H, D] */
    long query_step, head_step; /* floats from a query or head to the next */
    float *out;                 /* [T, H, D], in one piece */
} Asking;

/* Attend at one layer. Members meet within. Changes: out; the team has failed if there is no
   memory. */
void attend(const Member *me, const Reading *reading, const Asking *asking);

#endif
