/* Norms and gates of a layer: each row by itself, one pass over memory where it fits the cache. */

#include "parts.h"

#define MIN_PARALLEL 65536 /* floats, below which a second thread costs more than it saves */

/* Sum of squares of `size` floats, in an order that depends on VW alone. */
INLINE float squares_of(const float *x, long size) {
    vec sums[4] = {zero(), zero(), zero(), zero()};
    long i = 0;
    for (; i + 4 * VW <= size; i += 4 * VW)
#pragma GCC unroll 4
        for (int s = 0; s < 4; s++) {
            vec value = load(x + i + s * VW);
            sums[s] += value * value;
        }
    for (; i < size; i += VW) {
        long num = min_long(VW, size - i);
        vec value = num == VW ? load(x + i) : load_some(x + i, num, 0.0f);
        sums[0] += value * value;
    }
    return sum_of((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

INLINE void norm_row(const float *x, const float *gain, float *y, long size, float eps) {
    vec scale = all(1.0f / sqrtf(squares_of(x, size) / (float)size + eps));
    long i = 0;
    for (; i + VW <= size; i += VW) store(y + i, load(x + i) * scale * load(gain + i));
    if (i < size) {
        vec value = load_some(x + i, size - i, 0.0f) * scale;
        store_some(y + i, value * load_some(gain + i, size - i, 0.0f), size - i);
    }
}

void norm_rows(const Member *me, const float *x, const float *gain, float *y, long rows, long size,
               float eps) {
    long r, end;
    for (part_of(me, rows, &r, &end); r < end; r++)
        norm_row(x + r * size, gain, y + r * size, size, eps);
}

void norm_heads(const Member *me, float *heads, const float *gain, long rows, long row_step,
                long num_heads, long size, float eps) {
    long r, end;
    for (part_of(me, rows, &r, &end); r < end; r++)
        for (long h = 0; h < num_heads; h++) {
            float *head = heads + r * row_step + h * size;
            norm_row(head, gain, head, size, eps);
        }
}

void add_norm_rows(const Member *me, float *hidden, const float *delta, const float *gain, float *y,
                   long rows, long size, float eps) {
    long r, end;
    for (part_of(me, rows, &r, &end); r < end; r++) {
        float *row = hidden + r * size;
        const float *more = delta + r * size;
        for (long i = 0; i < size; i++) row[i] += more[i];
        norm_row(row, gain, y + r * size, size, eps);
    }
}

INLINE vec gated(vec gate, vec up, const int is_gelu) {
    if (!is_gelu) return gate * vsigmoid(gate) * up;
    vec u = gate * 0.79788456f * (gate * gate * 0.044715f + 1.0f);
    return gate * vsigmoid(u + u) * up;
}

INLINE void gate_row(const float *gate, float *y, long size, const int is_gelu) {
    const float *up = gate + size;
    long i = 0;
    for (; i + VW <= size; i += VW) store(y + i, gated(load(gate + i), load(up + i), is_gelu));
    if (i < size) {
        vec left = load_some(gate + i, size - i, 0.0f), right = load_some(up + i, size - i, 0.0f);
        store_some(y + i, gated(left, right, is_gelu), size - i);
    }
}

void gate_rows(const Member *me, const float *gate_up, float *y, long rows, long size,
               int is_gelu) {
    long r, end;
    for (part_of(me, rows, &r, &end); r < end; r++) {
        if (is_gelu) gate_row(gate_up + 2 * r * size, y + r * size, size, 1);
        else gate_row(gate_up + 2 * r * size, y + r * size, size, 0);
    }
}

/* ------------------------------------------------------------------------- one step by itself */

typedef struct {
    const float *x, *delta, *gain;
    float *hidden, *y;
    long rows, size;
    float eps;
    int is_gelu;
} Call;

static int team_for(int threads, long rows, long size) {
    return rows * size < MIN_PARALLEL ? 1 : threads;
}

static void norm_work(const Member *me, void *what) {
    const Call *call = what;
    norm_rows(me, call->x, call->gain, call->y, call->rows, call->size, call->eps);
}

EXPORT void mmserve_norm(const float *x, const float *gain, float *y, int64_t rows, int64_t size,
                         float eps, int32_t threads) {
    Call call = {.x = x, .gain = gain, .y = y, .rows = rows, .size = size, .eps = eps};
    together(team_for(threads, rows, size), norm_work, &call);
}

static void add_norm_work(const Member *me, void *what) {
    const Call *call = what;
    add_norm_rows(me, call->hidden, call->delta, call->gain, call->y, call->rows, call->size,
                  call->eps);
}

EXPORT void mmserve_add_norm(float *hidden, const float *delta, const float *gain, float *y,
                             int64_t rows, int64_t size, float eps, int32_t threads) {
    Call call = {.hidden = hidden, .delta = delta, .gain = gain, .y = y,
                 .rows = rows, .size = size, .eps = eps};
    together(team_for(threads, rows, size), add_norm_work, &call);
}

static void gate_work(const Member *me, void *what) {
    const Call *call = what;
    gate_rows(me, call->x, call->y, call->rows, call->size, call->is_gelu);
}

EXPORT void mmserve_gate(const float *gate_up, float *y, int64_t rows, int64_t size,
                         int32_t is_gelu, int32_t threads) {
    Call call = {.x = gate_up, .y = y, .rows = rows, .size = size, .is_gelu = is_gelu};
    together(team_for(threads, rows, size), gate_work, &call);
}
