// The products of attention: queries with keys, weights with values. In place, for one query token,
// over pointers to the numbers of each token; or for many, over copies of a block, in float32 or in
// pairs of bfloat16. What bfloat16 instructions do faster is in `products_bf16.h`.
#pragma once

#include "products_bf16.h"
#include "vector.h"

namespace {

// Partial sums of a product of DIM numbers; DIM 0: `dim` says how many, in whole vectors.
template <int DIM, typename T>
inline Vector dot(const T* a, const T* b, int64_t dim) {
  const int64_t count = DIM ? DIM : dim;
  Vector total = fill(0.0f);
#pragma GCC unroll 8
  for (int64_t i = 0; i < count; i += LANES) total += load(a + i) * load(b + i);
  return total;
}

// scores[j][t] = queries[j] . keys[t].
template <int DIM, typename T>
void score_in_place(const T* queries, int64_t columns, const T* const* keys, int64_t offset,
                    int64_t dim, float* scores) {
  for (int64_t t = 0; t < BLOCK_TOKENS; t += LANES) {
    for (int64_t j = 0; j < columns; ++j) {
      Vector partial[LANES];
#pragma GCC unroll 16
      for (int i = 0; i < LANES; ++i) {
        partial[i] = dot<DIM>(queries + j * dim, keys[t + i] + offset, dim);
      }
      store(sums(partial), scores + j * BLOCK_TOKENS + t);
    }
  }
}

// to[j][d] += sum over t of weights[j][t] x values[t][d], for J columns and V vectors of d.
template <int J, int V, typename T>
void weigh(const float* weights, const T* const* values, int64_t offset, int64_t tokens, float* to,
           int64_t width) {
  Vector sums[J][V];
  for (int j = 0; j < J; ++j) {
    for (int v = 0; v < V; ++v) sums[j][v] = load(to + j * width + v * LANES);
  }
  for (int64_t t = 0; t < tokens; ++t) {
    Vector row[V];
    for (int v = 0; v < V; ++v) row[v] = load(values[t] + offset + v * LANES);
    for (int j = 0; j < J; ++j) {
      const Vector weight = fill(weights[j * BLOCK_TOKENS + t]);
      for (int v = 0; v < V; ++v) sums[j][v] += weight * row[v];
    }
  }
  for (int j = 0; j < J; ++j) {
    for (int v = 0; v < V; ++v) store(sums[j][v], to + j * width + v * LANES);
  }
}

template <int V, typename T>
void weigh_columns(const float* weights, int64_t columns, const T* const* values, int64_t offset,
                   int64_t tokens, float* to, int64_t width) {
  int64_t j = 0;
  for (; j + 2 <= columns; j += 2) {
    weigh<2, V>(weights + j * BLOCK_TOKENS, values, offset, tokens, to + j * width, width);
  }
  if (j < columns) {
    weigh<1, V>(weights + j * BLOCK_TOKENS, values, offset, tokens, to + j * width, width);
  }
}

template <typename T>
void weigh_in_place(const float* weights, int64_t columns, const T* const* values, int64_t offset,
                    int64_t dim, int64_t tokens, float* to) {
  if (weighed_in_pairs(weights, columns, values, offset, dim, tokens, to)) return;
  int64_t d = 0;
  for (; d + 4 * LANES <= dim; d += 4 * LANES) {
    weigh_columns<4>(weights, columns, values, offset + d, tokens, to + d, dim);
  }
  for (; d < dim; d += LANES) {
    weigh_columns<1>(weights, columns, values, offset + d, tokens, to + d, dim);
  }
}

template <typename T>
void copy_query(const T* query, int64_t dim, float* to) {
  for (int64_t i = 0; i < dim; ++i) to[i] = widen(query[i]);
}

// A block of keys as [dim][BLOCK_TOKENS], of values as [BLOCK_TOKENS][width], filled with zeros.
template <typename T>
void copy_transposed(const T* const* keys, int64_t offset, int64_t dim, float* to) {
  for (int64_t t = 0; t < BLOCK_TOKENS; ++t) {
    const T* key = keys[t] + offset;
    for (int64_t i = 0; i < dim; ++i) to[i * BLOCK_TOKENS + t] = widen(key[i]);
  }
}

template <typename T>
void copy_rows(const T* const* values, int64_t offset, int64_t dim, float* to, int64_t width) {
  for (int64_t t = 0; t < BLOCK_TOKENS; ++t) {
    const T* value = values[t] + offset;
    for (int64_t i = 0; i < dim; ++i) to[t * width + i] = widen(value[i]);
    for (int64_t i = dim; i < width; ++i) to[t * width + i] = 0.0f;
  }
}

inline Vector add_product(Vector sum, float factor, const float* row) {
  return sum + fill(factor) * load(row);
}

// to[j][n] += sum over k of a[j][k] x b[k][n], for J rows and V vectors of n.
template <int J, int V, typename N>
void multiply_tile(const N* a, int64_t a_stride, const N* b, int64_t b_stride, float* to,
                   int64_t to_stride, int64_t depth) {
  Vector sums[J][V];
  for (int j = 0; j < J; ++j) {
    for (int v = 0; v < V; ++v) sums[j][v] = load(to + j * to_stride + v * LANES);
  }
  for (int64_t k = 0; k < depth; ++k) {
    const N* row = b + k * b_stride;
    for (int j = 0; j < J; ++j) {
      const N factor = a[j * a_stride + k];
      for (int v = 0; v < V; ++v) sums[j][v] = add_product(sums[j][v], factor, row + v * LANES);
    }
  }
  for (int j = 0; j < J; ++j) {
    for (int v = 0; v < V; ++v) store(sums[j][v], to + j * to_stride + v * LANES);
  }
}

constexpr int ROWS = LANES == 16 ? 6 : 4;
constexpr int VECTORS = LANES == 16 ? 4 : 2;

// to += a x b for a [rows][depth] and b [depth][width], with width in whole vectors.
template <typename N>
void multiply_add(const N* a, int64_t a_stride, const N* b, int64_t width, int64_t rows,
                  int64_t depth, float* to) {
  for (int64_t n = 0; n < width;) {
    const bool wide = n + VECTORS * LANES <= width;
    for (int64_t j = 0; j < rows;) {
      const bool many = j + ROWS <= rows;
      const auto tile =
          wide ? (many ? multiply_tile<ROWS, VECTORS, N> : multiply_tile<1, VECTORS, N>)
               : (many ? multiply_tile<ROWS, 1, N> : multiply_tile<1, 1, N>);
      tile(a + j * a_stride, a_stride, b + n, width, to + j * width + n, width, depth);
      j += many ? ROWS : 1;
    }
    n += wide ? VECTORS * LANES : LANES;
  }
}

}  // namespace
