// Reading ahead, where attention waits for memory. Shares were found by trying: a row that decodes
// reads a block in about the time that it takes to compute one.
#pragma once

#include <cstdint>

#include "attention_plan.h"

namespace {

constexpr int64_t LINES_A_TILE = 2;          // fetched for each product of tiles
constexpr int64_t LINES_A_SOFTMAX_PAIR = 6;  // for each two tokens whose scores become weights
constexpr int64_t LINES_A_PAIR = 8;          // for each two tokens whose values are weighed

// Brings the next block into the cache, a few lines at a time between the work on this one: a
// processor has a limited number of reads under way, which is then used all the time.
class Ahead {
 public:
  Ahead() = default;

  // Of each token's keys and values the bytes [begin, end).
  template <typename T>
  Ahead(const Block<T>& block, int64_t begin, int64_t end)
      : rows_{reinterpret_cast<const char* const*>(block.keys),
              reinterpret_cast<const char* const*>(block.values)},
        tokens_(block.tokens),
        begin_(begin),
        end_(end),
        at_(begin),
        kind_(0) {}

  void fetch(int64_t lines) {
    for (; lines > 0 && kind_ < 2; --lines) {
      __builtin_prefetch(rows_[kind_][token_] + at_, 0, 2);
      if ((at_ += LINE) < end_) continue;
      at_ = begin_;
      if (++token_ < tokens_) continue;
      token_ = 0, ++kind_;
    }
  }

 private:
  static constexpr int64_t LINE = 64;
  const char* const* rows_[2] = {};  // keys, values
  int64_t tokens_ = 0, begin_ = 0, end_ = 0, token_ = 0, at_ = 0;
  int kind_ = 2;
};

}  // namespace
