// Attention of one query token with tile instructions (AMX-BF16). Empty elsewhere.
//
// A tile of 16 keys, as they lie in their page, times the queries of several key heads at once: each
// head's queries are columns of their own, and zero in the columns of the others. So one register
// holds the scores of one token for up to 16 query heads.
#pragma once

#include "attention_plan.h"
#include "products.h"

namespace {

#if defined(__AMX_BF16__)

constexpr int64_t TILE = 16;
constexpr int64_t SLICE = 32;  // numbers of a key that one tile instruction takes

// Tile instructions read memory of which the compiler is not told.
inline void written() { asm volatile("" ::: "memory"); }

// Tile registers as these functions use them, on this thread, until the value dies: 0 to 3 scores,
// 4 and 5 keys, 6 queries. What another library had set up is put back.
class Tiles {
 public:
  Tiles() {
    _tile_storeconfig(&before_);
    Shapes mine{};
    mine.palette = 1;
    for (int i = 0; i < 7; ++i) mine.rows[i] = TILE, mine.row_bytes[i] = 64;
    written();
    _tile_loadconfig(&mine);
  }
  ~Tiles() {
    written();
    _tile_loadconfig(&before_);
  }
  Tiles(const Tiles&) = delete;

 private:
  struct alignas(64) Shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  };
  Shapes before_;
};

// The key heads [begin, end) of a task, whose query heads fill one register.
struct HeadTile {
  int64_t begin, end, columns;
  uint32_t* queries;  // [heads][dim / SLICE][SLICE / 2 pairs][TILE columns]
};

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

// scores[t][column] for the first COUNT x TILE tokens of a block; `stride`: bytes between tokens.
template <int COUNT>
void score_tiles(const bf16* const* keys, int64_t stride, const HeadTile& heads, int64_t dim,
                 float* scores) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  written();
  const uint32_t* queries = heads.queries;
  for (int64_t at = heads.begin * dim; at < heads.end * dim; at += SLICE) {
    _tile_loadd(6, queries, 64);
    queries += TILE * TILE;
    _tile_loadd(4, keys[0] + at, stride);
    _tile_dpbf16ps(0, 4, 6);
    if (COUNT > 1) {
      _tile_loadd(5, keys[TILE] + at, stride);
      _tile_dpbf16ps(1, 5, 6);
    }
    if (COUNT > 2) {
      _tile_loadd(4, keys[2 * TILE] + at, stride);
      _tile_dpbf16ps(2, 4, 6);
    }
    if (COUNT > 3) {
      _tile_loadd(5, keys[3 * TILE] + at, stride);
      _tile_dpbf16ps(3, 5, 6);
    }
  }
  _tile_stored(0, scores, 64);
  if (COUNT > 1) _tile_stored(1, scores + TILE * TILE, 64);
  if (COUNT > 2) _tile_stored(2, scores + 2 * TILE * TILE, 64);
  if (COUNT > 3) _tile_stored(3, scores + 3 * TILE * TILE, 64);
}

// Softmax of all columns so far, one a lane.
struct Running {
  Vector peaks = fill(-INFINITY), masses = fill(0.0f);

  // Scores become weights, in pairs of tokens; returns what sums so far are to be scaled by.
  Vector settle(const float* scores, int64_t tokens, float scale, uint32_t* weights) {
    Vector most = peaks;
    for (int64_t t = 0; t < tokens; ++t) most = larger(most, load(scores + t * TILE) * scale);
    const Vector shrink = exponential(peaks - most);
    masses *= shrink;
    peaks = most;
    const __m512i interleaved = _mm512_set_epi16(
        31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4,
        19, 3, 18, 2, 17, 1, 16, 0);
    for (int64_t t = 0; t < tokens; t += 2) {
      const Vector even = exponential(load(scores + t * TILE) * scale - most);
      const Vector odd = t + 1 < tokens
                             ? exponential(load(scores + (t + 1) * TILE) * scale - most)
                             : fill(0.0f);
      masses += even + odd;
      const __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
      _mm512_storeu_si512(weights + t / 2 * TILE, _mm512_permutexvar_epi16(interleaved, both));
    }
    return shrink;
  }
};

inline void attend_heads(const sluice::Attention& call, const sluice::AttentionTask& task,
                         const Plan& plan, const HeadTile& heads) {
  alignas(64) float scores[BLOCK_TOKENS * TILE];
  alignas(64) uint32_t weights[BLOCK_TOKENS / 2 * TILE];
  const int64_t end = task.position + 1, stride = call.pool.kv_heads * plan.dim * sizeof(bf16);
  float* sums = plan.sums + heads.begin * plan.group * plan.dim;
  Running softmax;
  for (int64_t from = 0; from < end; from += BLOCK_TOKENS) {
    const Block<bf16> block(call, task, from, end);
    const auto score = block.tokens > 3 * TILE   ? score_tiles<4>
                       : block.tokens > 2 * TILE ? score_tiles<3>
                       : block.tokens > TILE     ? score_tiles<2>
                                                 : score_tiles<1>;
    score(block.keys, stride, heads, plan.dim, scores);
    const Vector shrink = softmax.settle(scores, block.tokens, call.scale, weights);
    for (int64_t column = 0; column < heads.columns; ++column) {
      if (shrink[column] == 1.0f) continue;
      float* mine = sums + column * plan.dim;
      for (int64_t i = 0; i < plan.dim; i += LANES) store(load(mine + i) * shrink[column], mine + i);
    }
    for (int64_t head = heads.begin; head < heads.end; ++head) {
      const int64_t first = (head - heads.begin) * plan.group;
      weigh_all_pairs({weights + first, 1, TILE}, plan.group, block.values, head * plan.dim,
                      plan.dim, block.tokens, sums + first * plan.dim);
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
