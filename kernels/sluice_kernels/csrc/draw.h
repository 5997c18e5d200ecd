// One token of softmax(logits / temperature), without writing the distribution down.
#pragma once

#include <cmath>

#include "pointwise.h"
#include "variant.h"

namespace {

// Sums are taken in blocks: float32 within one, float64 over them.
constexpr int64_t BLOCK = 256;

// Not a number if any of the logits is none.
inline float peak_of(const float* logits, int64_t count) {
  Vector most = fill(-INFINITY), unordered = fill(0.0f);
  float last = -INFINITY, broken = 0;
  each(
      count,
      [&](int64_t i) {
        const Vector x = load(logits + i);
        most = larger(x, most);
        unordered = x == x ? unordered : x;
      },
      [&](int64_t i) {
        last = logits[i] > last ? logits[i] : last;
        broken = logits[i] == logits[i] ? broken : logits[i];
      });
  return std::max(last, largest(most)) + (sum(unordered) + broken);
}

inline float mass_of(const float* logits, int64_t count, float peak, float inverse) {
  Vector sums = fill(0.0f);
  float total = 0;
  each(
      count, [&](int64_t i) { sums += exponential((load(logits + i) - peak) * inverse); },
      [&](int64_t i) { total += exponential((logits[i] - peak) * inverse); });
  return total + sum(sums);
}

// First of `count` at which the running mass exceeds `target`; the last that has any mass if
// rounding leaves none.
inline int64_t find(const float* logits, int64_t count, float peak, float inverse, double target) {
  double mass = 0;
  int64_t last = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float weight = exponential((logits[i] - peak) * inverse);
    if (weight == 0.0f) continue;
    mass += weight;
    last = i;
    if (mass > target) break;
  }
  return last;
}

// One token of softmax(logits / temperature), whose largest logit is `peak`.
inline int64_t from_distribution(const float* logits, int64_t vocabulary, float peak,
                                 float temperature, double uniform) {
  const float inverse = 1.0f / temperature;
  double total = 0;
  for (int64_t at = 0; at < vocabulary; at += BLOCK) {
    total += mass_of(logits + at, std::min(BLOCK, vocabulary - at), peak, inverse);
  }
  const double target = std::min(uniform * total, std::nextafter(total, 0.0));
  double before = 0;
  for (int64_t at = 0; at < vocabulary; at += BLOCK) {
    const int64_t count = std::min(BLOCK, vocabulary - at);
    const double mass = mass_of(logits + at, count, peak, inverse);
    if (before + mass > target) {
      return at + find(logits + at, count, peak, inverse, target - before);
    }
    before += mass;
  }
  return vocabulary - 1;
}

inline void draw(const sluice::Draw& call, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const float* logits = call.logits + row * call.vocabulary;
    const float peak = peak_of(logits, call.vocabulary), temperature = call.temperatures[row];
    if (!std::isfinite(peak)) {
      call.tokens[row] = sluice::NO_TOKEN;
    } else if (temperature < call.greedy_below) {
      call.tokens[row] = std::find(logits, logits + call.vocabulary, peak) - logits;
    } else {
      call.tokens[row] =
          from_distribution(logits, call.vocabulary, peak, temperature, call.uniforms[row]);
    }
  }
}

}  // namespace
