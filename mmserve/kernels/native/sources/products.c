/* y = activation(x @ weight.T + bias) with a weight that was packed once.

   The outputs are cut into panels of NR columns, and a panel holds, for each input in order, the
   NR weights of its columns:

       float32   float  [panels][in][NR]
       8 bits    int8   [panels][in up to 32][NR]         scales bfloat16 [panels][in / 32][NR]
       4 bits    uint8  [panels][in up to 32, / 2][NR]    two inputs a byte, the even one low

   Each output is one chain of multiply-adds over the inputs in order, then the bias, then the
   activation, whatever rows stand beside it and however many threads there are: a row's result
   is the same to the bit alone and among others. Many rows go to the processor's matrix tiles
   where it has them (matrix.c): their sums have an order of their own. A weight of few bits is code * scale, which
   float32 holds exactly (7 and 8 bits of significand), so it may be formed anywhere.

   A tile is `rows` x NR sums held in registers. While rows * NR sums of one panel are computed,
   the panel that comes next is fetched into the second cache. */

#define _DEFAULT_SOURCE /* madvise, beside strict C */

#include "panels.h"

#include "matrix.h"

#include <unistd.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#define MAX_DEPTH 640 /* inputs computed at once: a panel's part is 80 KiB at most */
#define PIECE 4       /* panels that a member takes at once */
#define MANY_ROWS 48  /* from here on the processor's matrix tiles are faster */

/* --------------------------------------------------------------------------------- the loops */

/* Which rows and panels a member computes. */
struct share {
    long first_row, end_row;
    long first_panel, end_panel;
};

struct call {
    const struct product *product;
    const float *x;
    float *y;
};

static void finish_piece(const struct product *product, float *y, long rows, long first_panel,
                         long end_panel) {
    if (!product->bias && product->activation == NONE) return;
    long begin = first_panel * NR, end = min_long(end_panel * NR, product->num_outputs);
    finish(y + begin, product->num_outputs, rows, end - begin,
           product->bias ? product->bias + begin : NULL, product->activation);
}

static void one_row(const struct call *call, const struct share *mine) {
    const struct product *p = call->product;
    const float *x = call->x + mine->first_row * p->num_inputs;
    float *y = call->y + mine->first_row * p->num_outputs;
    long panel = mine->first_panel;
    long whole = min_long(mine->end_panel, p->num_outputs / NR);
    long size = weights_at(p, 1, 0) - weights_at(p, 0, 0);
    for (; panel + STREAMS <= whole; panel += STREAMS) {
        const void *weights = weights_at(p, panel, 0);
        const uint16_t *block = scales_at(p, panel, 0);
        long num = p->num_inputs, num_scales = ceil_of(p->num_inputs, BLOCK) * NR;
        if (p->bits == 32) stream_full(x, weights, num, y + panel * NR);
        else if (p->bits == 8) stream_eight(x, weights, size, block, num_scales, num, y + panel * NR);
        else stream_four(x, weights, size, block, num_scales, num, y + panel * NR);
    }
    tile compute = p->bits == 32 ? full_1 : p->bits == 8 ? eight_1 : four_1;
    for (; panel < mine->end_panel; panel++) {
        struct place at = {x, 0, weights_at(p, panel, 0), scales_at(p, panel, 0),
                           p->num_inputs, y + panel * NR, 0,
                           min_long(NR, p->num_outputs - panel * NR), 1,
                           weights_at(p, panel + 1, 0), 4 * NR};
        compute(&at);
    }
    finish_piece(p, y, 1, mine->first_panel, mine->end_panel);
}

/* Rows [first_row, end_row) of one panel, `depth` inputs from `input` on, in tiles of like
   size. */
static void one_panel(const struct call *call, const struct share *mine, long panel, long input,
                      long depth) {
    const struct product *p = call->product;
    const char *weights = weights_at(p, panel, input);
    const uint16_t *scales = scales_at(p, panel, input);
    long rows = mine->end_row - mine->first_row;
    long num_tiles = ceil_of(rows, MR);
    const tile *tiles = full_tiles;
    float values[(MAX_DEPTH + 1) * NR] __attribute__((aligned(64)));
    const char *ahead = weights_at(p, panel + 1, input);
    long stride = bytes_before(p, 2 * BLOCK) / (2 * BLOCK * num_tiles);
    if (p->bits != 32 && num_tiles > 1) {
        if (p->bits == 8) unpack((const int8_t *)weights, scales, depth, values, 8);
        else unpack((const int8_t *)weights, scales, depth, values, 4);
        weights = (const char *)values;
    } else if (p->bits != 32) {
        tiles = p->bits == 8 ? eight_tiles : four_tiles;
    }
    int is_last = input + depth == p->num_inputs;
    long columns = min_long(NR, p->num_outputs - panel * NR);
    for (long t = 0; t < num_tiles; t++) {
        long first = mine->first_row + rows * t / num_tiles;
        long num = mine->first_row + rows * (t + 1) / num_tiles - first;
        float *y = call->y + first * p->num_outputs + panel * NR;
        struct place at = {call->x + first * p->num_inputs + input, p->num_inputs, weights, scales,
                           depth, y, p->num_outputs, columns, input == 0,
                           ahead + t * depth * stride, stride};
        tiles[num - 1](&at);
        if (is_last && (p->bias || p->activation != NONE))
            finish(y, p->num_outputs, num, columns, p->bias ? p->bias + panel * NR : NULL,
                   p->activation);
    }
}

/* Inputs computed at once: all, or like parts of whole blocks. */
INLINE long depth_of(long num_inputs) {
    long parts = ceil_of(num_inputs, MAX_DEPTH);
    return ceil_of(ceil_of(num_inputs, parts), BLOCK) * BLOCK;
}

static void some_rows(const struct call *call, const struct share *share) {
    long num_inputs = call->product->num_inputs, depth = depth_of(num_inputs);
    for (long input = 0; input < num_inputs; input += depth)
        for (long panel = share->first_panel; panel < share->end_panel; panel++)
            one_panel(call, share, panel, input, min_long(depth, num_inputs - input));
}

static long bytes_for_rows(void) {
    static atomic_long bytes;
    if (!bytes) {
        long size = 0;
#if defined(_SC_LEVEL2_CACHE_SIZE)
        size = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
        bytes = (size > 0 ? size : 512 * 1024) * 3 / 8;
    }
    return bytes;
}

EXPORT int32_t mmserve_panel_width(void) { return NR; }

EXPORT int64_t mmserve_tile_rows(void) { return has_matrix_tiles() ? MANY_ROWS : 0; }

/* Asks for large pages, of which fewer are looked up in a stream. Changes: how memory is kept. */
EXPORT void mmserve_large_pages(void *address, int64_t num_bytes) {
#if defined(__linux__)
    madvise(address, (size_t)num_bytes, MADV_HUGEPAGE);
#else
    (void)address, (void)num_bytes;
#endif
}

/* Into how many parts rows and panels are cut. Rows of a part stay in the second cache; panels go
   to members in like parts, or the rows do where panels cannot. */
static void cut(const struct product *product, long rows, long panels, int size, long *parts,
                long *pieces) {
    long bytes = 4 * min_long(depth_of(product->num_inputs), product->num_inputs);
    long most = max_long(bytes_for_rows() / bytes / MR, 1) * MR;
    *parts = ceil_of(rows, most);
    *pieces = ceil_of(panels, rows == 1 ? 2 * STREAMS : PIECE);
    if (panels % size && rows >= 2 * MR * size) *parts = ceil_of(*parts, size) * size;
    else *pieces = min_long(ceil_of(*pieces, size) * size, panels);
}

void multiply(const Member *me, const float *x, float *y, long rows, const struct product *product) {
    if (rows >= MANY_ROWS && has_matrix_tiles()) {
        multiply_by_tiles(me, x, y, rows, product, finish_piece);
        return;
    }
    long panels = ceil_of(product->num_outputs, NR), parts, pieces;
    struct call call = {product, x, y};
    cut(product, rows, panels, me->size, &parts, &pieces);
    for (long number; (number = next_piece(me, parts * pieces)) >= 0;) {
        long part = number / pieces, piece = number % pieces;
        struct share share = {rows * part / parts, rows * (part + 1) / parts,
                              panels * piece / pieces, panels * (piece + 1) / pieces};
        if (share.end_row - share.first_row == 1) one_row(&call, &share);
        else some_rows(&call, &share);
    }
}

typedef struct {
    const float *x;
    float *y;
    long rows;
    const struct product *product;
    int has_failed;
} Call;

static void multiply_work(const Member *me, void *what) {
    Call *call = what;
    multiply(me, call->x, call->y, call->rows, call->product);
    meet(me);
    if (me->number == 0) call->has_failed = atomic_exchange(&me->team->failed, 0);
}

/* As `multiply`; 0 if all went well, else there is no memory. */
EXPORT int mmserve_product(const float *x, float *y, int64_t rows, const struct product *product,
                            int32_t threads) {
    Call call = {x, y, rows, product, 0};
    together(threads, multiply_work, &call);
    return call.has_failed;
}
