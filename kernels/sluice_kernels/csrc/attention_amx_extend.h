// Attention of many query tokens of one row, for one key head, with tile instructions (AMX-BF16).
// Empty elsewhere.
//
// Everything is transposed, so that a query column is a lane from the scores to the end: scores are
// [token][column], weights in pairs of tokens are what a tile product wants on its right, and sums
// are [dim][column]. Only values are turned round, once for all columns.
#pragma once

#include "tiles.h"

namespace {

#if defined(__AMX_BF16__)

// A block of values as [dim][BLOCK_TOKENS]: what a tile product wants on its left.
inline void turn_values(const bf16* const* values, int64_t offset, int64_t dim, uint32_t* to) {
  for (int64_t t = 0; t < BLOCK_TOKENS; t += SLICE) {
    for (int64_t d = 0; d < dim; d += SLICE) {
      __m512i low[TILE], high[TILE];
      for (int64_t pair = 0; pair < TILE; ++pair) {
        const __m512i even = _mm512_loadu_si512(values[t + 2 * pair] + offset + d);
        const __m512i odd = _mm512_loadu_si512(values[t + 2 * pair + 1] + offset + d);
        low[pair] = _mm512_unpacklo_epi16(even, odd);
        high[pair] = _mm512_unpackhi_epi16(even, odd);
      }
      transpose(low);
      transpose(high);
      // Interleaving works within 128 bits: 4 dims of each 8 are in the low half.
      for (int64_t i = 0; i < TILE; ++i) {
        const int64_t row = d + i / 4 * 8 + i % 4;
        _mm512_storeu_si512(to + row * (BLOCK_TOKENS / 2) + t / 2, low[i]);
        _mm512_storeu_si512(to + (row + 4) * (BLOCK_TOKENS / 2) + t / 2, high[i]);
      }
    }
  }
}

// sums[d][column] = sums x shrink + values x weights, for 16 columns.
inline void weigh_tile(const uint32_t* values, const uint32_t* weights, int64_t tokens,
                       Vector shrink, int64_t dim, float* sums) {
  for (int64_t d = 0; d < dim; ++d) store(load(sums + d * TILE) * shrink, sums + d * TILE);
  written();
  _tile_loadd(5, weights, 64);
  if (tokens > SLICE) _tile_loadd(6, weights + TILE * TILE, 64);
  for (int64_t d = 0; d < dim; d += TILE) {
    const uint32_t* rows = values + d * (BLOCK_TOKENS / 2);
    _tile_loadd(0, sums + d * TILE, 64);
    _tile_loadd(4, rows, BLOCK_TOKENS * sizeof(bf16));
    _tile_dpbf16ps(0, 4, 5);
    if (tokens > SLICE) {
      _tile_loadd(4, rows + TILE, BLOCK_TOKENS * sizeof(bf16));
      _tile_dpbf16ps(0, 4, 6);
    }
    _tile_stored(0, sums + d * TILE, 64);
  }
}

// Columns [first, first + 16) of a task and their parts of the scratch memory.
struct ColumnTile {
  int64_t first, columns;
  uint32_t* queries;  // [dim / SLICE][SLICE / 2 pairs][TILE columns]
  float* sums;        // [dim][TILE columns]
  Running softmax;
};

inline void begin_tile(const sluice::Attention& call, const sluice::AttentionTask& task,
                       const Plan& plan, ColumnTile& tile) {
  std::fill_n(tile.queries, plan.dim / 2 * TILE, 0);
  std::fill_n(tile.sums, plan.dim * TILE, 0.0f);
  for (int64_t column = 0; column < tile.columns; ++column) {
    const bf16* query = query_of<bf16>(call, task, plan, 0, tile.first + column);
    for (int64_t pair = 0; pair < plan.dim / 2; ++pair) {
      std::memcpy(tile.queries + pair * TILE + column, query + 2 * pair, sizeof(uint32_t));
    }
  }
}

// No column sees a token after its own. `position`: of the query token of the first column.
inline void hide(const Plan& plan, const ColumnTile& tile, const Block<bf16>& block,
                 int64_t position, float* scores) {
  int32_t last[TILE];  // the last token of the block that each column sees
  for (int64_t lane = 0; lane < TILE; ++lane) {
    last[lane] = static_cast<int32_t>(position + (tile.first + lane) / plan.group - block.begin);
  }
  const __m512i seen = _mm512_loadu_si512(last);
  for (int64_t t = std::max(0, last[0] + 1); t < block.tokens; ++t) {
    const __mmask16 hidden = _mm512_cmplt_epi32_mask(seen, _mm512_set1_epi32(t));
    _mm512_mask_storeu_ps(scores + t * TILE, hidden, _mm512_set1_ps(-INFINITY));
  }
}

inline void advance_tile(const sluice::Attention& call, const sluice::AttentionTask& task,
                         const Plan& plan, const Block<bf16>& block, const uint32_t* values,
                         ColumnTile& tile) {
  alignas(64) float scores[BLOCK_TOKENS * TILE];
  alignas(64) uint32_t weights[BLOCK_TOKENS / 2 * TILE];
  const int64_t last = task.position + (tile.first + tile.columns - 1) / plan.group;
  if (last < block.begin) return;
  const int64_t stride = call.pool.token_stride * sizeof(bf16);
  Ahead nothing;
  score_block(block, stride, {0, 1, tile.columns, tile.queries}, plan.dim, scores, nothing);
  hide(plan, tile, block, task.position, scores);
  const Vector shrink = tile.softmax.settle(scores, block.tokens, call.scale, weights, nothing);
  const int64_t pairs = (block.tokens + 1) / 2;
  std::fill(weights + pairs * TILE, weights + BLOCK_TOKENS / 2 * TILE, 0);
  weigh_tile(values, weights, block.tokens, shrink, plan.dim, tile.sums);
}

inline void finish_tile(const sluice::Attention& call, const sluice::AttentionTask& task,
                        const Plan& plan, const ColumnTile& tile) {
  const Vector scale = 1.0f / tile.softmax.masses;
  for (int64_t d = 0; d < plan.dim; d += TILE) {
    __m512i rows[TILE];
    for (int64_t i = 0; i < TILE; ++i) {
      rows[i] = (__m512i)(load(tile.sums + (d + i) * TILE) * scale);
    }
    transpose(rows);
    for (int64_t column = 0; column < tile.columns; ++column) {
      const bf16* query = query_of<bf16>(call, task, plan, 0, tile.first + column);
      bf16* out = static_cast<bf16*>(call.out) + (query - static_cast<const bf16*>(call.queries));
      store((Vector)rows[column], out + d);
    }
  }
}

constexpr int64_t MOST_TILES = 8;

inline bool extended_in_tiles(const sluice::Attention& call, const sluice::AttentionTask& task,
                              const Plan& plan, bf16*) {
  const bool fits = plan.kv_heads == 1 && plan.dim % SLICE == 0 &&
                    call.pool.page_size % TILE == 0 && plan.columns <= MOST_TILES * TILE;
  if (task.tokens == 1 || !fits) return false;
  const Tiles registers;
  ColumnTile tiles[MOST_TILES];
  uint32_t* at = reinterpret_cast<uint32_t*>(plan.tiles);
  float* sums = plan.tiles + MOST_TILES * TILE * plan.dim / 2;
  const int64_t count = (plan.columns + TILE - 1) / TILE;
  for (int64_t i = 0; i < count; ++i) {
    tiles[i].first = i * TILE;
    tiles[i].columns = std::min(TILE, plan.columns - i * TILE);
    tiles[i].queries = at + i * TILE * plan.dim / 2;
    tiles[i].sums = sums + i * TILE * plan.dim;
    begin_tile(call, task, plan, tiles[i]);
  }
  const int64_t end = task.position + task.tokens;
  uint32_t* values = reinterpret_cast<uint32_t*>(plan.values);
  for (int64_t from = 0; from < end; from += BLOCK_TOKENS) {
    const Block<bf16> block(call, task, from, end);
    turn_values(block.values, 0, plan.dim, values);
    for (int64_t i = 0; i < count; ++i) advance_tile(call, task, plan, block, values, tiles[i]);
  }
  for (int64_t i = 0; i < count; ++i) finish_tile(call, task, plan, tiles[i]);
  return true;
}

#endif

// False: the task is left to the general way.
template <typename T>
bool extended_in_tiles(const sluice::Attention&, const sluice::AttentionTask&, const Plan&, T*) {
  return false;
}

}  // namespace
