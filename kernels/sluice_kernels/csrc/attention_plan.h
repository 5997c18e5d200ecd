// What a task of attention needs to know and to write on, and where its tokens lie.
#pragma once

#include <algorithm>
#include <utility>

#include "products.h"
#include "variant.h"
#include "vector.h"

namespace {

inline int64_t padded(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

// Sizes of a task, and its parts of the scratch memory.
struct Plan {
  int64_t group, columns, kv_heads, dim, width;  // width: dim, filled up to whole vectors
  float *queries, *scores, *keys, *values, *tiles, *peaks, *masses, *sums;
  int64_t numbers;

  Plan(const sluice::Attention& call, const sluice::AttentionTask& task, float* scratch) {
    group = call.heads / call.pool.kv_heads;
    columns = task.tokens * group;
    kv_heads = task.kv_end - task.kv_begin;
    dim = call.pool.dim;
    width = padded(dim);
    float* at = scratch;
    auto take = [&](int64_t count) { return std::exchange(at, at + padded(count)); };
    queries = take(kv_heads * columns * dim);
    scores = take(columns * BLOCK_TOKENS);
    keys = take(dim * BLOCK_TOKENS);
    values = take(BLOCK_TOKENS * width);
    tiles = take(192 * padded(dim));  // as attention_amx_extend.h uses it
    peaks = take(kv_heads * columns);
    masses = take(kv_heads * columns);
    sums = take(kv_heads * columns * width);
    numbers = at - scratch;
  }
};

// Where the keys and values of a block of tokens lie; those after the last repeat it.
template <typename T>
struct Block {
  const T* keys[BLOCK_TOKENS];
  const T* values[BLOCK_TOKENS];
  int64_t begin, tokens;

  Block(const sluice::Attention& call, const sluice::AttentionTask& task, int64_t from, int64_t to)
      : begin(from), tokens(std::min(to - from, BLOCK_TOKENS)) {
    const sluice::Pool& pool = call.pool;
    const int64_t* pages = call.page_table + task.row * call.table_stride;
    const T* base = static_cast<const T*>(pool.base) + task.kv_begin * pool.dim;
    const int64_t stride = pool.token_stride;
    int64_t page = begin / pool.page_size, offset = begin % pool.page_size;
    const T* key = base;
    for (int64_t i = 0; i < BLOCK_TOKENS; ++i) {
      if (i < tokens) key = base + pages[page] * pool.page_stride + offset * stride;
      keys[i] = key;
      values[i] = key + pool.value_offset;
      if (++offset == pool.page_size) ++page, offset = 0;
    }
  }
};

template <typename T>
const T* query_of(const sluice::Attention& call, const sluice::AttentionTask& task,
                  const Plan& plan, int64_t kv_head, int64_t column) {
  const int64_t token = task.first_token + column / plan.group;
  const int64_t head = (task.kv_begin + kv_head) * plan.group + column % plan.group;
  return static_cast<const T*>(call.queries) + (token * call.heads + head) * plan.dim;
}

}  // namespace
