/* What turns the queries and keys of a step and stores its new keys and values. */

#include "parts.h"

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
