// Products with weights of 8 bits. With tile instructions activations become numbers of 16 bits, two
// bytes each, so that bytes are multiplied as they were read; elsewhere weights are widened, a block
// at a time, to what the instruction set multiplies fastest.
#pragma once

#include <type_traits>

#include "products.h"
#include "tiles.h"
#include "variant.h"

namespace {

using sluice::INT8_DEPTH;
using sluice::INT8_PANEL;

constexpr int64_t ROW_BLOCK = 256;    // rows that are computed at once
constexpr int64_t DEPTH_BLOCK = 256;  // inputs that are widened at a time, to stay in the L1 cache

// Weights of `fours` times four inputs, [fours][INT8_PANEL][4], as [4 x fours][INT8_PANEL].
inline void widen_weights(const int8_t* from, int64_t fours, float* to) {
  for (int64_t i = 0; i < fours; ++i, from += 4 * INT8_PANEL, to += 4 * INT8_PANEL) {
    for (int64_t j = 0; j < INT8_PANEL; j += LANES) {
      VectorInts four;
      std::memcpy(&four, from + 4 * j, sizeof four);
      store(__builtin_convertvector((four << 24) >> 24, Vector), to + j);
      store(__builtin_convertvector((four << 16) >> 24, Vector), to + INT8_PANEL + j);
      store(__builtin_convertvector((four << 8) >> 24, Vector), to + 2 * INT8_PANEL + j);
      store(__builtin_convertvector(four >> 24, Vector), to + 3 * INT8_PANEL + j);
    }
  }
}

template <typename T>
void copy_inputs(const T* x, int64_t depth, float* to, int64_t padded) {
  for (int64_t i = 0; i < depth; ++i) to[i] = widen(x[i]);
  for (int64_t i = depth; i < padded; ++i) to[i] = 0.0f;
}

#if defined(__AVX512BF16__)

// Two numbers of 8 bits as bfloat16, which is the upper half of float32, and exact.
inline void store_pairs(VectorInts first, VectorInts second, Pair* to) {
  const __m512i low = (__m512i)__builtin_convertvector(first, Vector);
  const __m512i high = (__m512i)__builtin_convertvector(second, Vector);
  _mm512_storeu_si512(to, _mm512_or_si512(_mm512_srli_epi32(low, 16), high));
}

// As [2 x fours][INT8_PANEL] pairs.
inline void widen_weights(const int8_t* from, int64_t fours, Pair* to) {
  for (int64_t i = 0; i < fours; ++i, from += 4 * INT8_PANEL, to += 2 * INT8_PANEL) {
    for (int64_t j = 0; j < INT8_PANEL; j += LANES) {
      VectorInts four;
      std::memcpy(&four, from + 4 * j, sizeof four);
      store_pairs((four << 24) >> 24, (four << 16) >> 24, to + j);
      store_pairs((four << 8) >> 24, four >> 24, to + INT8_PANEL + j);
    }
  }
}

inline void copy_inputs(const bf16* x, int64_t depth, Pair* to, int64_t padded) {
  std::memcpy(to, x, depth * sizeof(bf16));
  std::memset(reinterpret_cast<bf16*>(to) + depth, 0, (padded - depth) * sizeof(bf16));
}

#endif

// Outputs of one panel, of which the last panel has less than INT8_PANEL.
template <typename T, typename Value>
void store_outputs(const Value& value, int64_t count, T* out) {
  T row[INT8_PANEL];
  T* to = count == INT8_PANEL ? out : row;
  for (int64_t j = 0; j < INT8_PANEL; j += LANES) store(value(j), to + j);
  if (to == row) std::memcpy(out, row, count * sizeof(T));
}

inline char* aligned(float* scratch) {
  return reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(scratch) + 63) / 64 * 64);
}

// Numbers: of inputs, at most one float32 each, of sums, and of widened weights.
inline int64_t int8_scratch(const sluice::Int8Product& call) {
  const int64_t rows = (std::min(call.rows, ROW_BLOCK) + 15) / 16 * 16;
  return rows * (call.padded_depth + INT8_PANEL + 1) + (DEPTH_BLOCK + 32) * INT8_PANEL + 64;
}

template <typename T, typename N>
void int8_product_as(const sluice::Int8Product& call, int64_t begin, int64_t end, float* scratch) {
  const int64_t depth = call.padded_depth, stride = depth / HELD<N>;
  float* sums = reinterpret_cast<float*>(aligned(scratch));
  N* widened = reinterpret_cast<N*>(sums + std::min(call.rows, ROW_BLOCK) * INT8_PANEL);
  N* inputs = widened + DEPTH_BLOCK * INT8_PANEL / HELD<N>;
  for (int64_t first = 0; first < call.rows; first += ROW_BLOCK) {
    const int64_t rows = std::min(ROW_BLOCK, call.rows - first);
    const T* x = static_cast<const T*>(call.x) + first * call.depth;
    for (int64_t i = 0; i < rows; ++i) {
      copy_inputs(x + i * call.depth, call.depth, inputs + i * stride, depth);
    }
    for (int64_t panel = begin; panel < end; ++panel) {
      const int8_t* weights = call.weights + panel * depth * INT8_PANEL;
      std::memset(sums, 0, rows * INT8_PANEL * sizeof(float));
      for (int64_t at = 0; at < depth; at += DEPTH_BLOCK) {
        const int64_t block = std::min(DEPTH_BLOCK, depth - at);
        widen_weights(weights + at * INT8_PANEL, block / 4, widened);
        multiply_add(inputs + at / HELD<N>, stride, widened, INT8_PANEL, rows, block / HELD<N>,
                     sums);
      }
      const int64_t out = panel * INT8_PANEL, count = std::min(INT8_PANEL, call.width - out);
      for (int64_t i = 0; i < rows; ++i) {
        const auto value = [&](int64_t j) {
          return load(sums + i * INT8_PANEL + j) * load(call.scales + out + j);
        };
        T* to = static_cast<T*>(call.out) + (first + i) * call.width + out;
        store_outputs(value, count, to);
      }
    }
  }
}

#if defined(__AMX_INT8__)

constexpr int64_t TILE_ROWS = 8;      // whose upper bytes, then lower bytes, are the rows of a tile
constexpr int64_t TILE_DEPTH = 64;    // inputs that one tile instruction takes
constexpr float LARGEST = 32639.0f;   // 127 x 256 + 127
constexpr int64_t AHEAD_BYTES = 8192; // of weights, that are fetched before they are multiplied

// A row as whole numbers, 256 x upper + lower, and what one of them means. No number makes that none.
inline float split_row(const bf16* x, int64_t depth, int8_t* upper, int8_t* lower, int64_t padded) {
  alignas(64) float wide[TILE_DEPTH];
  const auto values = [&](int64_t i) -> Vector {
    if (i + LANES <= depth) return load(x + i);
    for (int64_t j = 0; j < LANES; ++j) wide[j] = i + j < depth ? widen(x[i + j]) : 0.0f;
    return load(wide);
  };
  __m512i peaks = _mm512_setzero_si512();
  for (int64_t i = 0; i < depth; i += LANES) {
    peaks = _mm512_max_epu32(peaks, _mm512_slli_epi32((__m512i)values(i), 1));
  }
  const uint32_t bits = static_cast<uint32_t>(_mm512_reduce_max_epu32(peaks)) >> 1;
  const float peak = bits_to_float(bits);
  const Vector factor = fill(peak > 0.0f ? LARGEST / peak : 0.0f);
  for (int64_t i = 0; i < padded; i += LANES) {
    const __m512i whole = _mm512_cvtps_epi32((__m512)(values(i) * factor));
    const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(128)), 8);
    const __m512i low = _mm512_sub_epi32(whole, _mm512_slli_epi32(high, 8));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(upper + i), _mm512_cvtepi32_epi8(high));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(lower + i), _mm512_cvtepi32_epi8(low));
  }
  return peak / LARGEST;
}

inline void fetch_ahead(const int8_t* weights) {
  for (int64_t line = 0; line < TILE_DEPTH * INT8_PANEL; line += 64) {
    _mm_prefetch(weights + AHEAD_BYTES + line, _MM_HINT_T0);
  }
}

constexpr int64_t FOURS = 4 * INT8_PANEL;  // bytes of a tile's row of weights to the next

// sums [16][INT8_PANEL] of one tile of inputs. Weights are read in the order of memory.
inline void multiply_one(const int8_t* x, int64_t depth, const int8_t* weights, int32_t* sums) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t i = 0; i < depth; i += TILE_DEPTH) {
    const int8_t* own = weights + i * INT8_PANEL;
    fetch_ahead(own);
    _tile_loadd(4, x + i, depth);
    _tile_loadd(5, own, FOURS);
    _tile_dpbssd(0, 4, 5);
    _tile_loadd(6, own + 64, FOURS);
    _tile_dpbssd(1, 4, 6);
    _tile_loadd(5, own + 128, FOURS);
    _tile_dpbssd(2, 4, 5);
    _tile_loadd(6, own + 192, FOURS);
    _tile_dpbssd(3, 4, 6);
  }
  _tile_stored(0, sums, FOURS);
  _tile_stored(1, sums + 16, FOURS);
  _tile_stored(2, sums + 32, FOURS);
  _tile_stored(3, sums + 48, FOURS);
}

// sums [32][INT8_PANEL] of two tiles of inputs that follow each other.
inline void multiply_two(const int8_t* x, int64_t depth, const int8_t* weights, int32_t* sums) {
  for (int64_t half = 0; half < INT8_PANEL; half += 32) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t i = 0; i < depth; i += TILE_DEPTH) {
      const int8_t* own = weights + i * INT8_PANEL + 4 * half;
      if (half == 0) fetch_ahead(own);
      _tile_loadd(4, x + i, depth);
      _tile_loadd(5, own, FOURS);
      _tile_loadd(6, own + 64, FOURS);
      _tile_loadd(7, x + 16 * depth + i, depth);
      _tile_dpbssd(0, 4, 5);
      _tile_dpbssd(1, 4, 6);
      _tile_dpbssd(2, 7, 5);
      _tile_dpbssd(3, 7, 6);
    }
    _tile_stored(0, sums + half, FOURS);
    _tile_stored(1, sums + half + 16, FOURS);
    _tile_stored(2, sums + 16 * INT8_PANEL + half, FOURS);
    _tile_stored(3, sums + 16 * INT8_PANEL + half + 16, FOURS);
  }
}

inline void int8_product_in_tiles(const sluice::Int8Product& call, int64_t begin, int64_t end,
                                  float* scratch) {
  const int64_t depth = call.padded_depth;
  int32_t* sums = reinterpret_cast<int32_t*>(aligned(scratch));
  float* scales = reinterpret_cast<float*>(sums + 32 * INT8_PANEL);  // of rows
  int8_t* inputs = reinterpret_cast<int8_t*>(scales + ROW_BLOCK);
  const Tiles tiles;
  for (int64_t first = 0; first < call.rows; first += ROW_BLOCK) {
    const int64_t rows = std::min(ROW_BLOCK, call.rows - first);
    const bf16* x = static_cast<const bf16*>(call.x) + first * call.depth;
    for (int64_t i = 0; i < rows; ++i) {
      int8_t* upper = inputs + (i / TILE_ROWS * 2 * TILE_ROWS + i % TILE_ROWS) * depth;
      scales[i] = split_row(x + i * call.depth, call.depth, upper, upper + TILE_ROWS * depth, depth);
    }
    written();
    for (int64_t panel = begin; panel < end; ++panel) {
      const int8_t* weights = call.weights + panel * depth * INT8_PANEL;
      const int64_t out = panel * INT8_PANEL, count = std::min(INT8_PANEL, call.width - out);
      for (int64_t row = 0; row < rows; row += 2 * TILE_ROWS) {
        const auto multiply = rows - row > TILE_ROWS ? multiply_two : multiply_one;
        multiply(inputs + row * 2 * depth, depth, weights, sums);
        written();
        for (int64_t i = row; i < std::min(rows, row + 2 * TILE_ROWS); ++i) {
          const int64_t in_tile = i - row;
          const int32_t* upper =
              sums + (in_tile / TILE_ROWS * 2 * TILE_ROWS + in_tile % TILE_ROWS) * INT8_PANEL;
          const int32_t* lower = upper + TILE_ROWS * INT8_PANEL;
          const auto value = [&](int64_t j) -> Vector {
            const __m512 high = _mm512_cvtepi32_ps(_mm512_loadu_si512(upper + j));
            const __m512 low = _mm512_cvtepi32_ps(_mm512_loadu_si512(lower + j));
            return ((Vector)high * 256.0f + (Vector)low) * load(call.scales + out + j) * scales[i];
          };
          bf16* to = static_cast<bf16*>(call.out) + (first + i) * call.width + out;
          store_outputs(value, count, to);
        }
      }
    }
  }
}

#endif

inline void int8_product(const sluice::Int8Product& call, sluice::Dtype dtype, int64_t begin,
                         int64_t end, float* scratch) {
  if (dtype == sluice::Dtype::f32) return int8_product_as<float, float>(call, begin, end, scratch);
#if defined(__AMX_INT8__)
  int8_product_in_tiles(call, begin, end, scratch);
#else
  using Narrow = std::conditional_t<IN_PAIRS<bf16>, Pair, float>;
  int8_product_as<bf16, Narrow>(call, begin, end, scratch);
#endif
}

}  // namespace
