/* A float32 is three bfloat16 exactly, by cutting its 24 bits into eights: x = x1 + x2 + x3. So

       x w  =  x1 w1 + x1 w2 + x2 w1 + x2 w2 + x1 w3 + x3 w1  +  what is below 2^-21 of it

   and each of the six is a product of bfloat16 with a float32 sum, of which a tile makes 8,192 in
   16 cycles: 16 times as many as multiply-adds of vectors. Weights that have fewer bits have fewer
   parts: one, if they come from a bfloat16 checkpoint, two if they are 8-bit codes times a scale.

       x        part of the rows  -> tiles [16 rows][32 inputs], all parts of an input together
       weight   one panel         -> tiles [16 pairs of inputs][16 columns][2]
       sums     32 rows x 32 columns in four tiles, kept while a block of inputs goes by

   A row's result does not depend on the rows beside it. It differs from that of `multiply` in the
   last bits of a float32, as a sum in another order does. */

#define _GNU_SOURCE /* syscall */

#include "matrix.h"

#include "weights.h"

#if defined(__AMX_BF16__) && defined(__AVX512F__) && defined(__linux__)

#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SIDE 16              /* rows of a tile, and 32-bit columns */
#define STEP 32              /* inputs of a tile */
#define TILE_BYTES 1024
#define PARTS 3              /* of a float32 */
#define STEPS_AT_ONCE 18          /* whose weights are packed together: 108 KiB */
#define BYTES_FOR_ROWS (5 << 18) /* of the second cache, which is 2 MiB where there are tiles */
#define PANELS_AT_ONCE 2

#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_XTILEDATA 18

int has_matrix_tiles(void) {
    static atomic_int state; /* 0: not asked, 1: yes, 2: no */
    int known = atomic_load(&state);
    if (!known) {
        int is_allowed = !syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA);
        atomic_store(&state, known = is_allowed ? 1 : 2);
    }
    return known == 1;
}

/* Layout of the tile registers, as the processor reads it: all of 16 rows of 64 bytes. */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} Registers;

static void open_tiles(void) {
    Registers all = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        all.bytes[i] = 64;
        all.rows[i] = SIDE;
    }
    _tile_loadconfig(&all);
}

/* The high half of each float as the next part, and what is left of it. Changes: value. */
INLINE __m512i next_part(__m512 *value) {
    __m512i high = _mm512_and_si512(_mm512_castps_si512(*value), _mm512_set1_epi32(-65536));
    *value = _mm512_sub_ps(*value, _mm512_castsi512_ps(high));
    return high;
}

/* Tiles of rows [rows, num_inputs]: [rows / 16][steps][part][16][32]; zeros fill up. */
static void pack_rows(const float *x, long rows, long num_inputs, long steps, char *tiles) {
    for (long r = 0; r < (rows + SIDE - 1) / SIDE * SIDE; r++) {
        char *to = tiles + r / SIDE * steps * PARTS * TILE_BYTES + r % SIDE * 64;
        for (long input = 0; input < steps * STEP; input += 16) {
            long num = r < rows ? min_long(max_long(num_inputs - input, 0), 16) : 0;
            __mmask16 mask = (__mmask16)((1u << num) - 1);
            __m512 value = _mm512_maskz_loadu_ps(mask, x + (num ? r * num_inputs + input : 0));
            char *at = to + input / STEP * PARTS * TILE_BYTES + input % STEP * 2;
            for (int part = 0; part < PARTS; part++) {
                __m512i high = _mm512_srli_epi32(next_part(&value), 16);
                _mm256_storeu_si256((__m256i *)(at + part * TILE_BYTES),
                                    _mm512_cvtepi32_epi16(high));
            }
        }
    }
}

/* Two inputs of half a panel as `parts` rows of tiles. */
INLINE void pack_pair(__m512 even, __m512 odd, char *to, const int parts) {
#pragma GCC unroll 3
    for (int part = 0; part < parts; part++) {
        __m512i low = _mm512_srli_epi32(next_part(&even), 16), high = next_part(&odd);
        _mm512_store_si512(to + part * 2 * TILE_BYTES, _mm512_or_si512(low, high));
    }
}

/* Tiles of `num` inputs of a panel, [steps][part][half][16 pairs][16][2]; zeros fill up. */
INLINE void pack_panel(const void *weights, const uint16_t *block, long num, char *tiles,
                       const int bits, const int parts) {
    struct scales scales = {{zero(), zero()}, {zero(), zero()}};
    for (long i = 0; i < ceil_of(num, STEP) * STEP; i += 2) {
        struct inputs two = {{zero(), zero()}, {zero(), zero()}};
        if (bits != 32 && i % BLOCK == 0 && i < num) {
            scales = block_scales(block, bits);
            block += NR;
        }
        if (i < num && bits == 32) {
            const float *from = (const float *)weights + i * NR;
            int has_odd = i + 1 < num;
            for (int half = 0; half < 2; half++) {
                two.even[half] = load(from + half * VW);
                if (has_odd) two.odd[half] = load(from + NR + half * VW);
            }
        } else if (i < num) {
            const int8_t *codes = (const int8_t *)weights + i / 2 * pair_bytes(bits);
            two = two_inputs(codes, &scales, bits);
        }
        char *to = tiles + i / STEP * parts * 2 * TILE_BYTES + i % STEP / 2 * 64;
        for (int half = 0; half < 2; half++)
            pack_pair((__m512)two.even[half], (__m512)two.odd[half], to + half * TILE_BYTES, parts);
    }
}

static void pack_weights(const struct product *p, const void *weights, const uint16_t *block,
                         long num, char *tiles) {
    if (p->bits == 8) pack_panel(weights, block, num, tiles, 8, 2);
    else if (p->bits == 4) pack_panel(weights, block, num, tiles, 4, 2);
    else if (p->parts == 1) pack_panel(weights, block, num, tiles, 32, 1);
    else if (p->parts == 2) pack_panel(weights, block, num, tiles, 32, 2);
    else pack_panel(weights, block, num, tiles, 32, 3);
}

/* Registers 0 to 3 hold sums [row half][column half], 4 and 5 rows, 6 and 7 columns. */
#define LOAD_ROWS(part)                                                    \
    _tile_loadd(4, rows + (part) * TILE_BYTES, 64);                        \
    if (has_both) _tile_loadd(5, other + (part) * TILE_BYTES, 64)
#define LOAD_COLUMNS(part)                                                 \
    _tile_loadd(6, columns + (part) * 2 * TILE_BYTES, 64);                 \
    _tile_loadd(7, columns + ((part) * 2 + 1) * TILE_BYTES, 64)
#define MULTIPLY                                                           \
    _tile_dpbf16ps(0, 4, 6);                                               \
    _tile_dpbf16ps(1, 4, 7);                                               \
    if (has_both) {                                                        \
        _tile_dpbf16ps(2, 5, 6);                                           \
        _tile_dpbf16ps(3, 5, 7);                                           \
    }

/* 16 or 32 rows times a block of inputs of a panel, added to the sums in registers. */
INLINE void add_steps(const char *rows, const char *other, const char *columns, long steps,
                      const int parts, const int has_both) {
    for (long s = 0; s < steps; s++) {
        LOAD_ROWS(0);
        LOAD_COLUMNS(0);
        MULTIPLY;
        if (parts > 1) {
            if (parts > 2) {
                LOAD_COLUMNS(2);
                MULTIPLY;
            }
            LOAD_COLUMNS(1);
            MULTIPLY;
            LOAD_ROWS(1);
            MULTIPLY;
            LOAD_COLUMNS(0);
        } else {
            LOAD_ROWS(1);
        }
        MULTIPLY;
        LOAD_ROWS(2);
        MULTIPLY;
        rows += PARTS * TILE_BYTES;
        other += PARTS * TILE_BYTES;
        columns += parts * 2 * TILE_BYTES;
    }
}

static void add_block(const char *rows, const char *other, const char *columns, long steps,
                      int parts) {
    if (parts == 1 && other) add_steps(rows, other, columns, steps, 1, 1);
    else if (parts == 1) add_steps(rows, rows, columns, steps, 1, 0);
    else if (parts == 2 && other) add_steps(rows, other, columns, steps, 2, 1);
    else if (parts == 2) add_steps(rows, rows, columns, steps, 2, 0);
    else if (other) add_steps(rows, other, columns, steps, 3, 1);
    else add_steps(rows, rows, columns, steps, 3, 0);
}

/* Copies `rows` x `columns` floats, whose rows are so many floats apart. Changes: to. */
INLINE void copy_floats(float *to, long to_step, const float *from, long from_step, long rows,
                        long columns) {
    for (long r = 0; r < rows; r++)
        memcpy(to + r * to_step, from + r * from_step, 4 * (size_t)columns);
}

/* Sums of up to 32 rows of a panel: begun or gone on with, and stored. Changes: y. */
static void sum_block(const char *rows, const char *columns, long steps, long row_steps, int parts,
                      float *y, long y_size, long num_rows, long num_columns, int is_first) {
    float whole[2 * SIDE * NR] __attribute__((aligned(64)));
    const char *other = num_rows > SIDE ? rows + row_steps * PARTS * TILE_BYTES : NULL;
    int is_whole = num_columns == NR && num_rows % SIDE == 0;
    float *sums = is_whole ? y : whole;
    long step = is_whole ? y_size : NR;
    if (is_first) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        if (!is_whole) copy_floats(whole, NR, y, y_size, num_rows, num_columns);
        _tile_loadd(0, sums, 4 * step);
        _tile_loadd(1, sums + SIDE, 4 * step);
        if (other) {
            _tile_loadd(2, sums + SIDE * step, 4 * step);
            _tile_loadd(3, sums + SIDE * step + SIDE, 4 * step);
        }
    }
    add_block(rows, other, columns, steps, parts);
    _tile_stored(0, sums, 4 * step);
    _tile_stored(1, sums + SIDE, 4 * step);
    if (other) {
        _tile_stored(2, sums + SIDE * step, 4 * step);
        _tile_stored(3, sums + SIDE * step + SIDE, 4 * step);
    }
    if (!is_whole) copy_floats(y, y_size, whole, NR, num_rows, num_columns);
}

/* A panel's outputs for the packed rows. Changes: y, `columns`. */
static void sum_panel(const struct product *p, long panel, const char *rows, long num_rows,
                      char *columns, float *y) {
    long steps = ceil_of(p->num_inputs, STEP);
    int parts = p->bits == 32 ? p->parts : 2;
    long num_columns = min_long(NR, p->num_outputs - panel * NR);
    for (long step = 0; step < steps; step += STEPS_AT_ONCE) {
        long num_steps = min_long(steps - step, STEPS_AT_ONCE);
        long input = step * STEP, num = min_long(num_steps * STEP, p->num_inputs - input);
        pack_weights(p, weights_at(p, panel, input), scales_at(p, panel, input), num, columns);
        for (long r = 0; r < num_rows; r += 2 * SIDE)
            sum_block(rows + (r / SIDE * steps + step) * PARTS * TILE_BYTES, columns, num_steps,
                      steps, parts, y + r * p->num_outputs + panel * NR, p->num_outputs,
                      min_long(num_rows - r, 2 * SIDE), num_columns, step == 0);
    }
}

void multiply_by_tiles(const Member *me, const float *x, float *y, long rows,
                       const struct product *product, Finish *finish) {
    long panels = ceil_of(product->num_outputs, NR), steps = ceil_of(product->num_inputs, STEP);
    long row_bytes = steps * PARTS * TILE_BYTES / SIDE;
    long most = max_long(BYTES_FOR_ROWS / row_bytes / (2 * SIDE), 1) * 2 * SIDE;
    long units = ceil_of(rows, 2 * SIDE), parts = ceil_of(rows, most);
    long pieces = min_long(ceil_of(ceil_of(panels, PANELS_AT_ONCE), me->size) * me->size, panels);
    size_t num_bytes = (size_t)(most + SIDE) * (size_t)row_bytes;
    char *packed = own_memory(num_bytes + STEPS_AT_ONCE * PARTS * 2 * TILE_BYTES);
    char *columns = packed + num_bytes;
    long packed_part = -1;
    if (!packed) atomic_store(&me->team->failed, 1);
    open_tiles();
    for (long number; (number = next_piece(me, parts * pieces)) >= 0 && packed;) {
        long part = number / pieces, piece = number % pieces;
        long first = units * part / parts * 2 * SIDE;
        long num = min_long(units * (part + 1) / parts * 2 * SIDE, rows) - first;
        if (part != packed_part)
            pack_rows(x + first * product->num_inputs, num, product->num_inputs, steps, packed);
        packed_part = part;
        long begin = panels * piece / pieces, end = panels * (piece + 1) / pieces;
        float *to = y + first * product->num_outputs;
        for (long panel = begin; panel < end; panel++)
            sum_panel(product, panel, packed, num, columns, to);
        finish(product, to, num, begin, end);
    }
    _tile_release();
}

#else

int has_matrix_tiles(void) { return 0; }

void multiply_by_tiles(const Member *me, const float *x, float *y, long rows,
                       const struct product *product, Finish *finish) {
    (void)me, (void)x, (void)y, (void)rows, (void)product, (void)finish;
}

#endif
