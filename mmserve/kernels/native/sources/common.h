/* Vectors of floats by the compiler's own extension: no intrinsics, so that any processor will do.

   A vector holds VW floats: 16 with AVX-512, 8 with AVX, else 4. Comparisons give all ones or all
   zeros in each place, as int32. */

#ifndef MMSERVE_COMMON_H
#define MMSERVE_COMMON_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define VW 16
#elif defined(__AVX__)
#define VW 8
#else
#define VW 4
#endif

#define INLINE static inline __attribute__((always_inline, unused))
#define EXPORT __attribute__((visibility("default")))

typedef float vec __attribute__((vector_size(4 * VW)));
typedef int32_t ivec __attribute__((vector_size(4 * VW)));
typedef float loose_vec __attribute__((vector_size(4 * VW), aligned(4), may_alias));
typedef int32_t loose_ivec __attribute__((vector_size(4 * VW), aligned(4), may_alias));

INLINE long min_long(long a, long b) { return a < b ? a : b; }
INLINE long max_long(long a, long b) { return a > b ? a : b; }

INLINE vec load(const float *from) { return *(const loose_vec *)from; }
INLINE void store(float *to, vec value) { *(loose_vec *)to = value; }
INLINE vec zero(void) { return (vec){0}; }
INLINE vec all(float value) { return value - (vec){0}; }
INLINE ivec iall(int32_t value) { return value - (ivec){0}; }

/* The first `num` of VW floats; the others are `rest`. */
INLINE vec load_some(const float *from, long num, float rest) {
    vec value = all(rest);
    memcpy(&value, from, 4 * (size_t)num);
    return value;
}

INLINE void store_some(float *to, vec value, long num) { memcpy(to, &value, 4 * (size_t)num); }

/* `yes` where the mask is all ones, `no` where it is zero. */
INLINE vec choose(ivec mask, vec yes, vec no) {
    return (vec)((mask & (ivec)yes) | (~mask & (ivec)no));
}

/* A place that is not a number in `a` stays so. */
INLINE vec vmax(vec a, vec b) { return choose(a < b, b, a); }
INLINE vec vmin(vec a, vec b) { return choose(a > b, b, a); }
INLINE vec vabs(vec a) { return (vec)((ivec)a & 0x7fffffff); }

/* Sums and maxima of a vector's places, halves first: an order that depends on VW alone. */
INLINE float sum_of(vec value) {
    float parts[VW];
    store(parts, value);
    for (int width = VW / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) parts[i] += parts[i + width];
    return parts[0];
}

INLINE float max_of(vec value) {
    float parts[VW];
    store(parts, value);
    for (int width = VW / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            if (parts[i + width] > parts[i]) parts[i] = parts[i + width];
    return parts[0];
}

/* e ** x with a relative error below 3e-7: 0 below -87.3, -inf included; inf above 88; what is
   not a number stays so.

   x = n ln 2 + r with |r| <= ln 2 / 2; e ** r by a polynomial; 2 ** n by its exponent bits. */
INLINE vec vexp(vec x) {
    const float shift = 12582912.0f; /* 1.5 * 2 ** 23: adding it rounds to an integer */
    vec bounded = vmin(vmax(x, all(-87.3f)), all(88.0f));
    vec shifted = bounded * 1.44269504f + shift;
    vec n = shifted - shift;
    vec r = bounded - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    vec p = r * 1.3888889e-3f + 8.3333333e-3f;
    p = p * r + 4.1666667e-2f;
    p = p * r + 1.6666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    vec power = (vec)(((ivec)shifted - 0x4b400000 + 127) << 23);
    vec result = choose(x < all(-87.3f), zero(), p * power);
    return choose(x > all(88.0f), all(INFINITY), result);
}

/* tanh x with a relative error below 5e-7. */
INLINE vec vtanh(vec x) {
    vec square = x * x;
    vec small = square * 2.1869488e-2f - 5.3968254e-2f; /* Taylor, for |x| < 0.3 */
    small = small * square + 1.3333333e-1f;
    small = small * square - 3.3333333e-1f;
    small = small * square * x + x;
    vec large = 1.0f - 2.0f / (vexp(x + x) + 1.0f);
    return choose(vabs(x) < all(0.3f), small, large);
}

/* 1 / (1 + e ** -x). */
INLINE vec vsigmoid(vec x) { return 1.0f / (1.0f + vexp(-x)); }

#endif
