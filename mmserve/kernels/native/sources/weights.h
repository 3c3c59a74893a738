/* A packed weight: where its panels lie, and the values that codes stand for.

   products.c tells how a weight lies. */

#ifndef MMSERVE_WEIGHTS_H
#define MMSERVE_WEIGHTS_H

#include "parts.h"

#if defined(__AVX2__)
#include <immintrin.h> /* for widening alone, which gcc 12 does in ten instructions */
#endif

#define NR (2 * VW)
#define BLOCK 32

INLINE long ceil_of(long number, long size) { return (number + size - 1) / size; }

/* Bytes from the beginning of a panel to the weights of `input`, a multiple of BLOCK. */
INLINE long bytes_before(const struct product *p, long input) {
    if (p->bits == 4) return input / 2 * NR;
    return input * (p->bits == 32 ? 4 * NR : NR);
}

INLINE const char *weights_at(const struct product *p, long panel, long input) {
    long inputs = p->bits == 32 ? p->num_inputs : ceil_of(p->num_inputs, BLOCK) * BLOCK;
    return (const char *)p->panels + panel * bytes_before(p, inputs) + bytes_before(p, input);
}

INLINE const uint16_t *scales_at(const struct product *p, long panel, long input) {
    if (!p->scales) return NULL;
    return p->scales + (panel * ceil_of(p->num_inputs, BLOCK) + input / BLOCK) * NR;
}

#if defined(__AVX512F__)
INLINE ivec wide_codes(const int8_t *from) {
    return (ivec)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from));
}
INLINE ivec wide_halves(const uint16_t *from) {
    return (ivec)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from));
}
#elif defined(__AVX2__)
INLINE ivec wide_codes(const int8_t *from) {
    return (ivec)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from));
}
INLINE ivec wide_halves(const uint16_t *from) {
    return (ivec)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from));
}
#else
typedef int8_t bytes __attribute__((vector_size(VW), aligned(1), may_alias));
typedef uint16_t halves __attribute__((vector_size(2 * VW), aligned(2), may_alias));
INLINE ivec wide_codes(const int8_t *from) {
    return __builtin_convertvector(*(const bytes *)from, ivec);
}
INLINE ivec wide_halves(const uint16_t *from) {
    return __builtin_convertvector(*(const halves *)from, ivec);
}
#endif

INLINE vec scales_of(const uint16_t *from) { return (vec)(wide_halves(from) << 16); }
INLINE vec floats_of(ivec codes) { return __builtin_convertvector(codes, vec); }

/* Scales of a block of a panel, and the weights of two inputs that follow each other. Halves of a
   byte are read as 2 ** 28 and 2 ** 4 times the code: scales of 4 bits make up for it exactly. */
struct scales {
    vec even[2], odd[2];
};
struct inputs {
    vec even[2], odd[2];
};

INLINE struct scales block_scales(const uint16_t *from, const int bits) {
    struct scales scales;
    for (int half = 0; half < 2; half++) {
        vec value = scales_of(from + half * VW);
        scales.even[half] = bits == 4 ? value * 0x1p-28f : value;
        scales.odd[half] = bits == 4 ? value * 0x1p-4f : value;
    }
    return scales;
}

/* Bytes of a panel's codes for two inputs. */
INLINE long pair_bytes(const int bits) { return bits == 8 ? 2 * NR : NR; }

INLINE struct inputs two_inputs(const int8_t *codes, const struct scales *scales, const int bits) {
    struct inputs two;
    for (int half = 0; half < 2; half++) {
        ivec first = wide_codes(codes + half * VW), second = first & ~15;
        if (bits == 4) first <<= 28;
        else second = wide_codes(codes + NR + half * VW);
        two.even[half] = floats_of(first) * scales->even[half];
        two.odd[half] = floats_of(second) * scales->odd[half];
    }
    return two;
}

#endif
