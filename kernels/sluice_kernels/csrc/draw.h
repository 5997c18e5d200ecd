// Draws from softmax(logits / temperature) without writing the distribution down.
#pragma once

#include <cmath>

#include "number.h"
#include "variant.h"

namespace {

// Sums are taken in blocks: float32 within one, float64 over them.
constexpr int64_t BLOCK = 256;

inline float peak_of(const float* logits, int64_t count) {
  float peak = logits[0];
#pragma omp simd reduction(max : peak)
  for (int64_t i = 0; i < count; ++i) peak = logits[i] > peak ? logits[i] : peak;
  return peak;
}

inline float mass_of(const float* logits, int64_t count, float peak, float inverse) {
  float mass = 0;
#pragma omp simd reduction(+ : mass)
  for (int64_t i = 0; i < count; ++i) mass += exponential((logits[i] - peak) * inverse);
  return mass;
}

// First of `count` at which the running mass exceeds `target`; the last that has any mass if
// rounding leaves none.
inline int64_t find(const float* logits, int64_t count, float peak, float inverse, double target) {
  double mass = 0;
  int64_t last = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float x = (logits[i] - peak) * inverse;
    if (x <= -87.0f) continue;
    mass += exponential(x);
    last = i;
    if (mass > target) break;
  }
  return last;
}

inline void draw(const sluice::Draw& call, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const float* logits = call.logits + row * call.vocabulary;
    const float peak = peak_of(logits, call.vocabulary);
    const float inverse = 1.0f / call.temperatures[row];
    double total = 0;
    for (int64_t at = 0; at < call.vocabulary; at += BLOCK) {
      const int64_t count = std::min(BLOCK, call.vocabulary - at);
      total += mass_of(logits + at, count, peak, inverse);
    }
    const double target = std::min(call.uniforms[row] * total, std::nextafter(total, 0.0));
    double before = 0;
    for (int64_t at = 0; at < call.vocabulary; at += BLOCK) {
      const int64_t count = std::min(BLOCK, call.vocabulary - at);
      const double mass = mass_of(logits + at, count, peak, inverse);
      if (before + mass > target) {
        call.tokens[row] = at + find(logits + at, count, peak, inverse, target - before);
        break;
      }
      before += mass;
    }
  }
}

}  // namespace
