// Products of bfloat16 numbers without widening them, two at a time (AVX512-BF16). Elsewhere only
// names, which say that there are none.
#pragma once

#include <algorithm>

#include "vector.h"

namespace {

// Tokens whose scores are computed before any of them is weighed.
constexpr int64_t BLOCK_TOKENS = 64;

// Two numbers that one instruction multiplies by two others, the first in the low half.
struct __attribute__((may_alias)) Pair {
  uint32_t bits;
};

// How many numbers of a product's depth an N holds.
template <typename N>
constexpr int64_t HELD = 1;
template <>
inline constexpr int64_t HELD<Pair> = 2;

// Whether copies of a block of T may hold pairs.
template <typename T>
constexpr bool IN_PAIRS = false;

#if defined(__AVX512BF16__)

template <>
inline constexpr bool IN_PAIRS<bf16> = true;

inline Vector add_product(Vector sum, Pair factor, const Pair* row) {
  const __m512bh both = (__m512bh)_mm512_set1_epi32(static_cast<int>(factor.bits));
  return (Vector)_mm512_dpbf16_ps((__m512)sum, both, (__m512bh)_mm512_loadu_si512(row));
}

inline void copy_query(const bf16* query, int64_t dim, Pair* to) {
  std::memcpy(to, query, dim * sizeof(bf16));
}

// A block of keys as [dim / 2][BLOCK_TOKENS]: pairs are of one token. `dim` in units of 32.
inline void copy_transposed(const bf16* const* keys, int64_t offset, int64_t dim, Pair* to) {
  for (int64_t t = 0; t < BLOCK_TOKENS; t += LANES) {
    for (int64_t i = 0; i < dim; i += 2 * LANES) {
      __m512i rows[LANES];
      for (int j = 0; j < LANES; ++j) rows[j] = _mm512_loadu_si512(keys[t + j] + offset + i);
      transpose(rows);
      for (int j = 0; j < LANES; ++j) {
        _mm512_storeu_si512(to + (i / 2 + j) * BLOCK_TOKENS + t, rows[j]);
      }
    }
  }
}

// A block of values as [BLOCK_TOKENS / 2][width]: pairs are of two tokens. `dim` in whole vectors,
// so that there is nothing to fill.
inline void copy_rows(const bf16* const* values, int64_t offset, int64_t dim, Pair* to,
                      int64_t width) {
  for (int64_t t = 0; t < BLOCK_TOKENS; t += 2) {
    const bf16 *even = values[t] + offset, *odd = values[t + 1] + offset;
    for (int64_t i = 0; i < dim; i += LANES) {
      const __m512i high = (__m512i)load(odd + i);  // bfloat16 is the upper half of float32
      const __m512i low = _mm512_srli_epi32((__m512i)load(even + i), 16);
      _mm512_storeu_si512(to + t / 2 * width + i, _mm512_or_si512(low, high));
    }
  }
}

// BLOCK_TOKENS weights; `to` may be where they are. Sums of weights are of those not rounded, as is
// usual (Dao et al. 2022), so a result may be off by the rounding of a bfloat16.
inline void pack_weights(const float* weights, Pair* to) {
  for (int64_t t = 0; t < BLOCK_TOKENS; t += 2 * LANES) {
    const Vector first = load(weights + t), second = load(weights + t + LANES);
    const __m512bh both = _mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
    _mm512_storeu_si512(to + t / 2, (__m512i)both);
  }
}

inline __m512bh pairs(const bf16* from) { return (__m512bh)_mm512_loadu_si512(from); }

template <int DIM>
inline Vector dot(const bf16* a, const bf16* b, int64_t dim) {
  const int64_t count = DIM ? DIM : dim;
  __m512 total = _mm512_setzero_ps();
  int64_t i = 0;
#pragma GCC unroll 4
  for (; i + 32 <= count; i += 32) total = _mm512_dpbf16_ps(total, pairs(a + i), pairs(b + i));
  for (; i < count; i += LANES) total = (__m512)((Vector)total + load(a + i) * load(b + i));
  return (Vector)total;
}

// Weights of two tokens each, in bfloat16: of column j and tokens 2p and 2p + 1 at
// pairs[j x column + p x pair].
struct WeightPairs {
  const Pair* pairs;
  int64_t column, pair;
};

// to[j][d] += sum over t of weights[j][t] x values[t][d], for J columns and 64 numbers of d. Values
// of two tokens are interleaved within 128 bits, so sums come out as 4 from each half of 8.
template <int J, typename Fetch>
void weigh_pairs(WeightPairs weights, const bf16* const* values, int64_t offset, int64_t tokens,
                 float* to, int64_t width, const Fetch& fetch) {
  __m512 sums[J][4] = {};
  for (int64_t p = 0; 2 * p < tokens; ++p) {
    fetch();
    const bf16* even = values[2 * p] + offset;
    const bf16* odd = values[std::min(2 * p + 1, tokens - 1)] + offset;
    __m512bh both[4];
    for (int half = 0; half < 2; ++half) {
      const __m512i a = _mm512_loadu_si512(even + 32 * half);
      const __m512i b = _mm512_loadu_si512(odd + 32 * half);
      both[2 * half] = (__m512bh)_mm512_unpacklo_epi16(a, b);
      both[2 * half + 1] = (__m512bh)_mm512_unpackhi_epi16(a, b);
    }
    for (int j = 0; j < J; ++j) {
      const Pair pair = weights.pairs[j * weights.column + p * weights.pair];
      const __m512bh weight = (__m512bh)_mm512_set1_epi32(static_cast<int>(pair.bits));
      for (int v = 0; v < 4; ++v) sums[j][v] = _mm512_dpbf16_ps(sums[j][v], weight, both[v]);
    }
  }
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
  for (int j = 0; j < J; ++j) {
    for (int half = 0; half < 2; ++half) {
      const __m512 low = sums[j][2 * half], high = sums[j][2 * half + 1];
      float* at = to + j * width + 32 * half;
      store(load(at) + (Vector)_mm512_permutex2var_ps(low, first, high), at);
      store(load(at + 16) + (Vector)_mm512_permutex2var_ps(low, second, high), at + 16);
    }
  }
}

// The same for any number of columns; `dim` in units of 64. `fetch` is called once for each two
// tokens.
template <typename Fetch>
inline void weigh_all_pairs(WeightPairs weights, int64_t columns, const bf16* const* values,
                            int64_t offset, int64_t dim, int64_t tokens, float* to,
                            const Fetch& fetch) {
  for (int64_t d = 0; d < dim; d += 64) {
    for (int64_t j = 0; j < columns;) {
      const WeightPairs mine{weights.pairs + j * weights.column, weights.column, weights.pair};
      const int64_t left = columns - j;
      const auto some = left >= 4   ? weigh_pairs<4, Fetch>
                        : left >= 2 ? weigh_pairs<2, Fetch>
                                    : weigh_pairs<1, Fetch>;
      some(mine, values, offset + d, tokens, to + j * dim + d, dim, fetch);
      j += left >= 4 ? 4 : left >= 2 ? 2 : 1;
    }
  }
}

// Takes what it can; false for what it leaves to the general way. weights: [columns][BLOCK_TOKENS],
// 0 from `tokens` on.
inline bool weighed_in_pairs(const float* weights, int64_t columns, const bf16* const* values,
                             int64_t offset, int64_t dim, int64_t tokens, float* to) {
  constexpr int64_t MOST_COLUMNS = 8;
  if (columns > MOST_COLUMNS || dim % 64 != 0) return false;
  alignas(64) Pair packed[MOST_COLUMNS][BLOCK_TOKENS / 2];
  for (int64_t j = 0; j < columns; ++j) pack_weights(weights + j * BLOCK_TOKENS, packed[j]);
  weigh_all_pairs({packed[0], BLOCK_TOKENS / 2, 1}, columns, values, offset, dim, tokens, to,
                  [] {});
  return true;
}

#endif

template <typename T>
bool weighed_in_pairs(const float*, int64_t, const T* const*, int64_t, int64_t, int64_t, float*) {
  return false;
}

}  // namespace
