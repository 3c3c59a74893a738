/* What the parts of a layer share: their records and the functions that layers.c calls. */

#ifndef MMSERVE_PARTS_H
#define MMSERVE_PARTS_H

#include "common.h"

/* A packed weight; products.c tells how it lies. `_Product` of native/linear.py. */
struct product {
    const void *panels;
    const uint16_t *scales; /* NULL: float32 */
    const float *bias;      /* whole panels, NULL: none */
    int64_t num_inputs;
    int64_t num_outputs;
    int32_t bits; /* 32, 8, 4 */
    int32_t activation;
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

EXPORT void mmserve_norm(const float *x, const float *gain, float *y, int64_t rows, int64_t size,
                         float eps, int32_t threads);
EXPORT void mmserve_add_norm(float *hidden, const float *delta, const float *gain, float *y,
                             int64_t rows, int64_t size, float eps, int32_t threads);
EXPORT void mmserve_gate(const float *gate_up, float *y, int64_t rows, int64_t size,
                         int32_t is_gelu, int32_t threads);
EXPORT void mmserve_product(const float *x, float *y, int64_t rows, const struct product *product,
                            int32_t threads);
EXPORT void mmserve_turn_and_write(const Target *target, float *fused, long token_step,
                                   long num_heads, const float *cos, const float *sin,
                                   long angle_step, long num_pairs, int num_threads);
EXPORT int mmserve_attend(const Reading *reading, long number, const float *queries,
                          long query_step, long head_step, float *out, int num_threads);

/* Norms of neighbouring heads, in place: `num_heads` of `size` floats for each of `rows` tokens,
   whose first heads are `row_step` floats apart; a head's result is that of `mmserve_norm`. */
void norm_heads(float *heads, const float *gain, long rows, long row_step, long num_heads,
                long size, float eps, int threads);

#endif
