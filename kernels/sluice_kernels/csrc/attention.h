// Attention of some query tokens of one row over the pages of that row, block by block, with the
// running softmax of Milakov and Gimelshein (2018). Every query head that shares a key head is a
// column beside its query tokens: columns = tokens x heads / kv_heads.
//
// One query token (a row that decodes) reads keys and values where they lie. Many (a chunk of a
// prompt) read them from copies of a block, keys transposed, in float32 or in pairs of bfloat16.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>

#include "attention_amx_decode.h"
#include "attention_amx_extend.h"
#include "attention_plan.h"
#include "products.h"
#include "variant.h"
#include "vector.h"

namespace {

// Softmax of one column so far: its scores become weights, its sum so far is scaled to match.
inline void settle(float* scores, int64_t visible, float scale, float& peak, float& mass,
                   float* sums, int64_t width) {
  for (int64_t i = visible; i < BLOCK_TOKENS; ++i) scores[i] = -INFINITY;
  Vector most = load(scores);
  for (int64_t i = LANES; i < BLOCK_TOKENS; i += LANES) most = larger(most, load(scores + i));
  const float before = peak;
  peak = std::max(before, largest(most) * scale);
  Vector total = fill(0.0f);
  for (int64_t i = 0; i < BLOCK_TOKENS; i += LANES) {
    const Vector weights = exponential(load(scores + i) * scale - peak);
    total += weights;
    store(weights, scores + i);
  }
  if (peak != before) {
    const float shrink = exponential(before - peak);
    mass *= shrink;
    for (int64_t i = 0; i < width; i += LANES) store(load(sums + i) * shrink, sums + i);
  }
  mass += sum(total);
}

template <typename T>
void settle_all(const sluice::Attention& call, const sluice::AttentionTask& task, const Plan& plan,
                const Block<T>& block, int64_t kv_head) {
  for (int64_t column = 0; column < plan.columns; ++column) {
    const int64_t after = task.position + column / plan.group + 1 - block.begin;
    const int64_t visible = std::clamp<int64_t>(after, 0, block.tokens);
    const int64_t at = kv_head * plan.columns + column;
    float* scores = plan.scores + column * BLOCK_TOKENS;
    if (visible == 0) {
      std::fill_n(scores, BLOCK_TOKENS, 0.0f);
      continue;
    }
    settle(scores, visible, call.scale, plan.peaks[at], plan.masses[at],
           plan.sums + at * plan.width, plan.width);
  }
}

template <typename T>
void write_out(const sluice::Attention& call, const sluice::AttentionTask& task, const Plan& plan) {
  for (int64_t kv_head = 0; kv_head < plan.kv_heads; ++kv_head) {
    for (int64_t column = 0; column < plan.columns; ++column) {
      const T* query = query_of<T>(call, task, plan, kv_head, column);
      T* out = static_cast<T*>(call.out) + (query - static_cast<const T*>(call.queries));
      const int64_t at = kv_head * plan.columns + column;
      const float* sums = plan.sums + at * plan.width;
      const float scale = 1.0f / plan.masses[at];
#pragma omp simd
      for (int64_t i = 0; i < plan.dim; ++i) narrow(sums[i] * scale, out[i]);
    }
  }
}

inline void begin_sums(const Plan& plan) {
  const int64_t columns = plan.kv_heads * plan.columns;
  std::fill_n(plan.peaks, columns, -INFINITY);
  std::fill_n(plan.masses, columns, 0.0f);
  std::fill_n(plan.sums, columns * plan.width, 0.0f);
}

// One query token: all key heads of a block are read before the next block, as they lie in memory.
template <typename T, int DIM>
void attend_in_place(const sluice::Attention& call, const sluice::AttentionTask& task,
                     const Plan& plan) {
  const int64_t end = task.position + 1, dim = DIM ? DIM : plan.dim;
  for (int64_t from = 0; from < end; from += BLOCK_TOKENS) {
    const Block<T> block(call, task, from, end);
    for (int64_t kv_head = 0; kv_head < plan.kv_heads; ++kv_head) {
      const int64_t offset = kv_head * dim;
      const T* queries = query_of<T>(call, task, plan, kv_head, 0);
      score_in_place<DIM>(queries, plan.columns, block.keys, offset, dim, plan.scores);
      settle_all(call, task, plan, block, kv_head);
      weigh_in_place(plan.scores, plan.columns, block.values, offset, dim, block.tokens,
                     plan.sums + kv_head * plan.columns * dim);
    }
  }
}

template <typename T, typename N>
void copy_queries(const sluice::Attention& call, const sluice::AttentionTask& task,
                  const Plan& plan, N* to) {
  for (int64_t at = 0; at < plan.kv_heads * plan.columns; ++at) {
    const T* query = query_of<T>(call, task, plan, at / plan.columns, at % plan.columns);
    copy_query(query, plan.dim, to + at * plan.dim / HELD<N>);
  }
}

// Weights of [columns][BLOCK_TOKENS] as multiply_add takes them: as they are, or in pairs, which
// take the first half of a row.
template <typename N>
const N* factors(float* weights, int64_t columns) {
  N* const to = reinterpret_cast<N*>(weights);
  if constexpr (HELD<N> > 1) {
    for (int64_t at = 0; at < columns * BLOCK_TOKENS; at += BLOCK_TOKENS) {
      pack_weights(weights + at, to + at);
    }
  }
  return to;
}

// N: what the copies hold.
template <typename T, typename N>
void attend_in_copies(const sluice::Attention& call, const sluice::AttentionTask& task,
                      const Plan& plan) {
  const int64_t end = task.position + task.tokens, columns = plan.columns;
  const int64_t depth = plan.dim / HELD<N>;
  N* const queries = reinterpret_cast<N*>(plan.queries);
  N* const keys = reinterpret_cast<N*>(plan.keys);
  N* const values = reinterpret_cast<N*>(plan.values);
  copy_queries<T>(call, task, plan, queries);
  for (int64_t from = 0; from < end; from += BLOCK_TOKENS) {
    const Block<T> block(call, task, from, end);
    for (int64_t kv_head = 0; kv_head < plan.kv_heads; ++kv_head) {
      const int64_t first = kv_head * columns;
      copy_transposed(block.keys, kv_head * plan.dim, plan.dim, keys);
      std::fill_n(plan.scores, columns * BLOCK_TOKENS, 0.0f);
      multiply_add(queries + first * depth, depth, keys, BLOCK_TOKENS, columns, depth, plan.scores);
      settle_all(call, task, plan, block, kv_head);
      copy_rows(block.values, kv_head * plan.dim, plan.dim, values, plan.width);
      multiply_add(factors<N>(plan.scores, columns), BLOCK_TOKENS, values, plan.width, columns,
                   (block.tokens + HELD<N> - 1) / HELD<N>, plan.sums + first * plan.width);
    }
  }
}

template <typename T>
void attend_many(const sluice::Attention& call, const sluice::AttentionTask& task,
                 const Plan& plan) {
  if constexpr (IN_PAIRS<T>) {
    if (plan.dim % (2 * LANES) == 0) return attend_in_copies<T, Pair>(call, task, plan);
  }
  attend_in_copies<T, float>(call, task, plan);
}

template <typename T>
void attend_as(const sluice::Attention& call, const sluice::AttentionTask& task, float* scratch) {
  const Plan plan(call, task, scratch);
  if (extended_in_tiles(call, task, plan, static_cast<T*>(nullptr))) return;
  begin_sums(plan);
  if (attended_in_tiles(call, task, plan, static_cast<T*>(nullptr))) {
    // Nothing is left to do but to divide.
  } else if (task.tokens > 1 || plan.dim % LANES != 0) {
    attend_many<T>(call, task, plan);
  } else if (plan.dim == 64) {
    attend_in_place<T, 64>(call, task, plan);
  } else if (plan.dim == 128) {
    attend_in_place<T, 128>(call, task, plan);
  } else {
    attend_in_place<T, 0>(call, task, plan);
  }
  write_out<T>(call, task, plan);
}

inline int64_t attend_scratch(const sluice::Attention& call, const sluice::AttentionTask& task) {
  return Plan(call, task, nullptr).numbers;
}

}  // namespace
