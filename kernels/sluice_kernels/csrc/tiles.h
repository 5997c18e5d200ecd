// Tile instructions (AMX-BF16) as attention uses them. Empty elsewhere.
#pragma once

#include "ahead.h"
#include "attention_plan.h"

namespace {

#if defined(__AMX_BF16__)

constexpr int64_t TILE = 16;
constexpr int64_t SLICE = 32;  // numbers of a key that one tile instruction takes

// Tile instructions read memory of which the compiler is not told.
inline void written() { asm volatile("" ::: "memory"); }

// All tile registers as 16 rows of 64 bytes, on this thread, until the value dies: in attention 0 to
// 3 are scores, 4 and 5 keys, 6 queries. What another library had set up is put back.
class Tiles {
 public:
  Tiles() {
    _tile_storeconfig(&before_);
    Shapes mine{};
    mine.palette = 1;
    for (int i = 0; i < 8; ++i) mine.rows[i] = TILE, mine.row_bytes[i] = 64;
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

// scores[t][column] for the first COUNT x TILE tokens of a block; `stride`: bytes between tokens.
template <int COUNT>
void score_tiles(const bf16* const* keys, int64_t stride, const HeadTile& heads, int64_t dim,
                 float* scores, Ahead& ahead) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  written();
  const uint32_t* queries = heads.queries;
  for (int64_t at = heads.begin * dim; at < heads.end * dim; at += SLICE) {
    _tile_loadd(6, queries, 64);
    queries += TILE * TILE;
    ahead.fetch(LINES_A_TILE * COUNT);
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

inline void score_block(const Block<bf16>& block, int64_t stride, const HeadTile& heads,
                        int64_t dim, float* scores, Ahead& ahead) {
  const auto score = block.tokens > 3 * TILE   ? score_tiles<4>
                     : block.tokens > 2 * TILE ? score_tiles<3>
                     : block.tokens > TILE     ? score_tiles<2>
                                               : score_tiles<1>;
  score(block.keys, stride, heads, dim, scores, ahead);
}

// Softmax of all columns so far, one a lane.
struct Running {
  Vector peaks = fill(-INFINITY), masses = fill(0.0f);

  // Scores become weights, in pairs of tokens; returns what sums so far are to be scaled by.
  Vector settle(const float* scores, int64_t tokens, float scale, uint32_t* weights, Ahead& ahead) {
    Vector most = peaks;
    for (int64_t t = 0; t < tokens; ++t) most = larger(most, load(scores + t * TILE) * scale);
    const Vector shrink = exponential(peaks - most);
    masses *= shrink;
    peaks = most;
    const __m512i interleaved = _mm512_set_epi16(
        31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4,
        19, 3, 18, 2, 17, 1, 16, 0);
    for (int64_t t = 0; t < tokens; t += 2) {
      ahead.fetch(LINES_A_SOFTMAX_PAIR);
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

#endif

}  // namespace
