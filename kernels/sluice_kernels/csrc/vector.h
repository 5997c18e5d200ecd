// One register of float32 numbers in the compiler's own vector type: as wide as the instruction set
// that this translation unit is compiled for.
#pragma once

#include "number.h"
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float Vector __attribute__((vector_size(LANES * 4)));
typedef uint32_t VectorBits __attribute__((vector_size(LANES * 4)));
typedef int32_t VectorInts __attribute__((vector_size(LANES * 4)));
typedef uint16_t VectorHalves __attribute__((vector_size(LANES * 2)));

// Not `Vector{} + value`: that is another number for -0, so the compiler would add.
inline Vector fill(float value) { return value - Vector{}; }

inline Vector load(const float* from) {
  Vector value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

#if defined(__AVX512F__)
inline Vector load(const bf16* from) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return (Vector)_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16);
}
#elif defined(__AVX2__)
inline Vector load(const bf16* from) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return (Vector)_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16);
}
#else
inline Vector load(const bf16* from) {
  VectorHalves halves;
  std::memcpy(&halves, from, sizeof halves);
  return reinterpret_cast<Vector>(__builtin_convertvector(halves, VectorBits) << 16);
}
#endif

inline void store(Vector value, float* to) { std::memcpy(to, &value, sizeof value); }

// Rounds as `narrow` does.
#if defined(__AVX512BF16__)
inline void store(Vector value, bf16* to) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh((__m512)value));
}
#else
inline void store(Vector value, bf16* to) {
  const VectorBits bits = reinterpret_cast<VectorBits>(value);
  const VectorBits rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const VectorBits checked = (bits & 0x7fffffff) <= 0x7f800000 ? rounded : VectorBits{} + 0x7fc0;
  const VectorHalves halves = __builtin_convertvector(checked, VectorHalves);
  std::memcpy(to, &halves, sizeof halves);
}
#endif

inline Vector larger(Vector a, Vector b) { return a > b ? a : b; }

// See `exponential` in number.h.
inline Vector exponential(Vector given) {
  Vector x = given < -87.0f ? fill(-87.0f) : given;  // no number stays none
  x = x > 88.0f ? fill(88.0f) : x;
  const Vector magic = fill(12582912.0f);
  const Vector whole = (x * 1.44269504f + magic) - magic;
  const Vector rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  Vector sum = fill(1.9875691500e-4f);
  sum = sum * rest + 1.3981999507e-3f;
  sum = sum * rest + 8.3334519073e-3f;
  sum = sum * rest + 4.1665795894e-2f;
  sum = sum * rest + 1.6666665459e-1f;
  sum = sum * rest + 5.0000001201e-1f;
  sum = (sum * rest) * rest + rest + 1.0f;
  const VectorInts power = (__builtin_convertvector(whole, VectorInts) + 127) << 23;
  return given < -87.0f ? fill(0.0f) : sum * reinterpret_cast<Vector>(power);
}

template <int... I>
inline Vector pair_sums(Vector a, Vector b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (2 * I)...) + __builtin_shufflevector(a, b, (2 * I + 1)...);
}

// Sums of each of LANES vectors, in their order.
inline Vector sums(Vector* of) {
  for (int count = LANES; count > 1; count /= 2) {
    for (int i = 0; i < count / 2; ++i) {
      of[i] = pair_sums(of[2 * i], of[2 * i + 1], std::make_integer_sequence<int, LANES>{});
    }
  }
  return of[0];
}

#if defined(__AVX512F__)
inline float sum(Vector value) { return _mm512_reduce_add_ps((__m512)value); }
inline float largest(Vector value) { return _mm512_reduce_max_ps((__m512)value); }

// Rows become columns: 16 x 16 numbers of 32 bits.
inline void transpose(__m512i* rows) {
  __m512i t[LANES];
  for (int i = 0; i < LANES; i += 2) {
    t[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < LANES; i += 4) {
    for (int j = 0; j < 2; ++j) {
      rows[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + j + 2]);
      rows[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + j + 2]);
    }
  }
  for (int i = 0; i < LANES; i += 8) {
    for (int j = 0; j < 4; ++j) {
      t[i + j] = _mm512_shuffle_i32x4(rows[i + j], rows[i + j + 4], 0x88);
      t[i + j + 4] = _mm512_shuffle_i32x4(rows[i + j], rows[i + j + 4], 0xdd);
    }
  }
  for (int j = 0; j < 8; ++j) {
    rows[j] = _mm512_shuffle_i32x4(t[j], t[j + 8], 0x88);
    rows[j + 8] = _mm512_shuffle_i32x4(t[j], t[j + 8], 0xdd);
  }
}
#else
inline float sum(Vector value) {
  float total = 0;
  for (int i = 0; i < LANES; ++i) total += value[i];
  return total;
}

inline float largest(Vector value) {
  float found = value[0];
  for (int i = 1; i < LANES; ++i) found = value[i] > found ? value[i] : found;
  return found;
}

#endif

}  // namespace
