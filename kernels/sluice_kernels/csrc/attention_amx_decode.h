// Attention of one query token with tile instructions (AMX-BF16). Empty elsewhere.
//
// A tile of 16 keys, as they lie in their page, times the queries of several key heads at once: each
// head's queries are columns of their own, and zero in the columns of the others. So one register
// holds the scores of one token for up to 16 query heads.
#pragma once

#include "products.h"
#include "tiles.h"

namespace {

#if defined(__AMX_BF16__)

inline int64_t heads_in_a_tile(const Plan& plan) {
  return std::min(plan.kv_heads, TILE / plan.group);
}

inline void pack_queries(const sluice::Attention& call, const sluice::AttentionTask& task,
                         const Plan& plan, const HeadTile& heads) {
  const int64_t slices = plan.dim / SLICE, numbers = slices * TILE * TILE;
  std::fill_n(heads.queries, (heads.end - heads.begin) * numbers, 0);
  for (int64_t column = 0; column < heads.columns; ++column) {
    const int64_t head = column / plan.group;
    const bf16* query =
        query_of<bf16>(call, task, plan, heads.begin + head, column % plan.group);
    uint32_t* to = heads.queries + head * numbers + column;
    for (int64_t pair = 0; pair < plan.dim / 2; ++pair) {
      std::memcpy(to + pair * TILE, query + 2 * pair, sizeof(uint32_t));
    }
  }
}

inline void attend_heads(const sluice::Attention& call, const sluice::AttentionTask& task,
                         const Plan& plan, const HeadTile& heads) {
  alignas(64) float scores[BLOCK_TOKENS * TILE];
  alignas(64) uint32_t weights[BLOCK_TOKENS / 2 * TILE];
  const int64_t end = task.position + 1, stride = call.pool.token_stride * sizeof(bf16);
  const int64_t head_bytes = plan.dim * sizeof(bf16);
  float* sums = plan.sums + heads.begin * plan.group * plan.dim;
  Running softmax;
  for (int64_t from = 0; from < end; from += BLOCK_TOKENS) {
    const Block<bf16> block(call, task, from, end);
    const int64_t after = from + BLOCK_TOKENS;
    const Block<bf16> next(call, task, std::min(after, end - 1), end);
    Ahead ahead;
    if (after < end) ahead = Ahead(next, heads.begin * head_bytes, heads.end * head_bytes);
    score_block(block, stride, heads, plan.dim, scores, ahead);
    const Vector shrink = softmax.settle(scores, block.tokens, call.scale, weights, ahead);
    for (int64_t column = 0; column < heads.columns; ++column) {
      if (shrink[column] == 1.0f) continue;
      float* mine = sums + column * plan.dim;
      for (int64_t i = 0; i < plan.dim; i += LANES) store(load(mine + i) * shrink[column], mine + i);
    }
    const Pair* packed = reinterpret_cast<const Pair*>(weights);
    for (int64_t head = heads.begin; head < heads.end; ++head) {
      const int64_t first = (head - heads.begin) * plan.group;
      weigh_all_pairs({packed + first, 1, TILE}, plan.group, block.values, head * plan.dim, plan.dim,
                      block.tokens, sums + first * plan.dim,
                      [&] { ahead.fetch(LINES_A_PAIR); });
    }
  }
  for (int64_t column = 0; column < heads.columns; ++column) {
    plan.masses[heads.begin * plan.group + column] = softmax.masses[column];
  }
}

// Keys of 16 tokens must lie evenly, so a page must hold whole tiles.
inline bool fits_tiles(const sluice::Attention& call, const sluice::AttentionTask& task,
                       const Plan& plan) {
  return task.tokens == 1 && plan.dim % 64 == 0 && plan.group <= TILE &&
         call.pool.page_size % TILE == 0;
}

inline bool attended_in_tiles(const sluice::Attention& call, const sluice::AttentionTask& task,
                              const Plan& plan, bf16*) {
  if (!fits_tiles(call, task, plan)) return false;
  const Tiles tiles;
  const int64_t at_once = heads_in_a_tile(plan);
  for (int64_t begin = 0; begin < plan.kv_heads; begin += at_once) {
    const int64_t end = std::min(begin + at_once, plan.kv_heads);
    const HeadTile heads{begin, end, (end - begin) * plan.group,
                         reinterpret_cast<uint32_t*>(plan.tiles)};
    pack_queries(call, task, plan, heads);
    attend_heads(call, task, plan, heads);
  }
  return true;
}

#endif

// False: the task is left to the general way.
template <typename T>
bool attended_in_tiles(const sluice::Attention&, const sluice::AttentionTask&, const Plan&, T*) {
  return false;
}

}  // namespace
