/* What turns the queries and keys of a step and stores its new keys and values. */

#include "parts.h"

/* Store one head of a token. */
INLINE void put_head(float *to, const float *from, long size) {
    for (long d = 0; d < size; d++) to[d] = from[d];
}

#define MANY_FLOATS 32768 /* fewer are moved by one thread */

/* Keys and values [T, G, D]; steps are floats from a token or head to the next. */
typedef struct {
    const Target *target;
    const float *keys, *values;
    long key_token_step, key_head_step, value_token_step, value_head_step;
} Writing;

static void write_work(const Member *me, void *what) {
    const Writing *w = what;
    const Target *target = w->target;
    long t, end;
    for (part_of(me, target->num_tokens, &t, &end); t < end; t++)
        for (long g = 0; g < target->num_groups; g++) {
            long at = g * target->group_step + target->slots[t] * target->slot_step;
            put_head(target->keys + at, w->keys + t * w->key_token_step + g * w->key_head_step,
                     target->size);
            put_head(target->values + at,
                     w->values + t * w->value_token_step + g * w->value_head_step, target->size);
        }
}

static int team_for(int threads, long num_floats) {
    return num_floats < MANY_FLOATS ? 1 : threads;
}

EXPORT void mmserve_write_kv(const Target *target, const float *keys, long key_token_step,
                             long key_head_step, const float *values, long value_token_step,
                             long value_head_step, int threads) {
    Writing writing = {target, keys, values, key_token_step, key_head_step, value_token_step,
                       value_head_step};
    long num_floats = target->num_tokens * target->num_groups * target->size;
    together(team_for(threads, num_floats), write_work, &writing);
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

void turn_and_write(const Member *me, const Target *target, float *fused, long token_step,
                    long num_heads, const Angles *angles, long angle_step) {
    long size = target->size, num_groups = target->num_groups, t, end;
    for (part_of(me, target->num_tokens, &t, &end); t < end; t++) {
        float *token = fused + t * token_step, *keys = token + num_heads * size;
        if (angles->num_pairs)
            turn(token, num_heads + num_groups, size, angles->cos + t * angle_step,
                 angles->sin + t * angle_step, angles->num_pairs);
        for (long g = 0; g < num_groups; g++) {
            long at = g * target->group_step + target->slots[t] * target->slot_step;
            put_head(target->keys + at, keys + g * size, size);
            put_head(target->values + at, keys + (num_groups + g) * size, size);
        }
    }
}

typedef struct {
    const Target *target;
    float *fused;
    long token_step, num_heads;
    Angles angles;
    long angle_step;
} Turning;

static void turn_work(const Member *me, void *what) {
    const Turning *call = what;
    turn_and_write(me, call->target, call->fused, call->token_step, call->num_heads, &call->angles,
                   call->angle_step);
}

EXPORT void mmserve_turn_and_write(const Target *target, float *fused, long token_step,
                                   long num_heads, const float *cos, const float *sin,
                                   long angle_step, long num_pairs, int threads) {
    Turning call = {target, fused, token_step, num_heads, {cos, sin, num_pairs}, angle_step};
    long num_floats = target->num_tokens * (num_heads + 2 * target->num_groups) * target->size;
    together(team_for(threads, num_floats), turn_work, &call);
}
