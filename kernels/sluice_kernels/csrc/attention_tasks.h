// How attention is cut into tasks, and who computes them.
#pragma once

#include <vector>

#include "choice.h"

namespace sluice {

// The rows of a step: row i is the query tokens [begins[i], begins[i + 1]), the last ones of its
// `contexts[i]` tokens, and has line `lines[i]` of the page table.
struct Rows {
  const int64_t* lines;
  const int64_t* begins;
  const int64_t* contexts;
  int64_t count;
};

// Query tokens of a task of a row that extends: enough columns that a block of keys pays.
constexpr int64_t COLUMNS = 96;

// Rows that extend are cut by query token and key head; rows that decode by key head where `wanted`
// tasks would not come together otherwise.
inline std::vector<AttentionTask> attention_tasks(const Rows& rows, int64_t heads,
                                                  int64_t kv_heads, int64_t wanted) {
  const int64_t count = rows.count;
  const int64_t piece = std::max<int64_t>(2, COLUMNS * kv_heads / heads);
  const int64_t share = count >= wanted ? kv_heads : std::max<int64_t>(1, kv_heads * count / wanted);
  std::vector<AttentionTask> tasks;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t first = rows.begins[i], tokens = rows.begins[i + 1] - first;
    const int64_t known = rows.contexts[i] - tokens, heads_at_once = tokens > 1 ? 1 : share;
    for (int64_t kv = 0; kv < kv_heads; kv += heads_at_once) {
      const int64_t kv_end = std::min(kv + heads_at_once, kv_heads);
      for (int64_t from = 0; from < tokens; from += piece) {
        tasks.push_back({rows.lines[i], first + from, std::min(piece, tokens - from), known + from,
                         kv, kv_end});
      }
    }
  }
  return tasks;
}

// Numbers of scratch memory that the largest task needs.
inline int64_t attention_scratch(const Attention& call, const std::vector<AttentionTask>& tasks) {
  int64_t numbers = 0;
  for (const AttentionTask& task : tasks) {
    numbers = std::max(numbers, variant().attend_scratch(call, task));
  }
  return numbers;
}

}  // namespace sluice
