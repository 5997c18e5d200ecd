// Norm, gate, rotation: kernels that read every number once, and compute in float32.
#pragma once

#include <cmath>

#include "number.h"
#include "variant.h"
#include "vector.h"

namespace {

// Calls `work` with the place of every whole vector below `width`, then with every place left over.
template <typename Whole, typename Rest>
inline void each(int64_t width, const Whole& whole, const Rest& rest) {
  int64_t i = 0;
  for (; i + LANES <= width; i += LANES) whole(i);
  for (; i < width; ++i) rest(i);
}

template <typename T>
float inverse_rms(const T* x, int64_t width, float eps) {
  Vector sums = fill(0.0f);
  float total = 0;
  each(
      width, [&](int64_t i) { sums += load(x + i) * load(x + i); },
      [&](int64_t i) { total += widen(x[i]) * widen(x[i]); });
  return 1.0f / std::sqrt((total + sum(sums)) / static_cast<float>(width) + eps);
}

// x[at + i] += the deltas there.
template <typename T>
void add(const sluice::AddNorm& call, int64_t at) {
  T* x = static_cast<T*>(call.x) + at;
  const auto delta = [&](int64_t k) { return static_cast<const T*>(call.deltas[k]) + at; };
  each(
      call.width,
      [&](int64_t i) {
        Vector total = load(x + i);
        for (int64_t k = 0; k < call.delta_count; ++k) total += load(delta(k) + i);
        store(total, x + i);
      },
      [&](int64_t i) {
        float total = widen(x[i]);
        for (int64_t k = 0; k < call.delta_count; ++k) total += widen(delta(k)[i]);
        narrow(total, x[i]);
      });
}

template <typename T>
void add_norm(const sluice::AddNorm& call, int64_t begin, int64_t end) {
  const T* weight = static_cast<const T*>(call.weight);
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(call.x) + row * call.width;
    T* normed = static_cast<T*>(call.normed) + row * call.width;
    if (call.delta_count) add<T>(call, row * call.width);
    if (!weight) continue;
    const float scale = inverse_rms(x, call.width, call.eps);
    each(
        call.width, [&](int64_t i) { store(load(x + i) * scale * load(weight + i), normed + i); },
        [&](int64_t i) { narrow(widen(x[i]) * scale * widen(weight[i]), normed[i]); });
  }
}

template <typename T>
void gate(const sluice::Gate& call, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* gates = static_cast<const T*>(call.gate_up) + row * 2 * call.width;
    const T* ups = gates + call.width;
    T* out = static_cast<T*>(call.out) + row * call.width;
    each(
        call.width,
        [&](int64_t i) {
          const Vector x = load(gates + i);
          store(x / (1.0f + exponential(-x)) * load(ups + i), out + i);
        },
        [&](int64_t i) {
          const float x = widen(gates[i]);
          narrow(x / (1.0f + exponential(-x)) * widen(ups[i]), out[i]);
        });
  }
}

inline void to_float(const sluice::ToFloat& call, int64_t begin, int64_t end) {
  const bf16* from = static_cast<const bf16*>(call.from);
  each(
      end - begin, [&](int64_t i) { store(load(from + begin + i), call.to + begin + i); },
      [&](int64_t i) { call.to[begin + i] = widen(from[begin + i]); });
}

// The first and the second half of a head are one pair each. weight may be null.
template <typename T>
void rotate_head(const T* x, const T* weight, const float* cos, const float* sin, T* out,
                 int64_t dim, float eps) {
  const int64_t half = dim / 2;
  const float scale = weight ? inverse_rms(x, dim, eps) : 1.0f;
  each(
      half,
      [&](int64_t i) {
        Vector first = load(x + i), second = load(x + half + i);
        if (weight) {
          first *= scale * load(weight + i);
          second *= scale * load(weight + half + i);
        }
        const Vector c = load(cos + i), s = load(sin + i);
        store(first * c - second * s, out + i);
        store(second * c + first * s, out + half + i);
      },
      [&](int64_t i) {
        const float first = widen(x[i]) * scale * (weight ? widen(weight[i]) : 1.0f);
        const float second = widen(x[half + i]) * scale * (weight ? widen(weight[half + i]) : 1.0f);
        narrow(first * cos[i] - second * sin[i], out[i]);
        narrow(second * cos[i] + first * sin[i], out[half + i]);
      });
}

template <typename T>
void rotate_and_store(const sluice::RotateAndStore& call, int64_t begin, int64_t end) {
  const sluice::Pool& pool = call.pool;
  const int64_t dim = pool.dim, heads = call.heads, turning = heads + pool.kv_heads;
  const T* norm = static_cast<const T*>(call.head_norm);
  for (int64_t n = begin; n < end; ++n) {
    const T* token = static_cast<const T*>(call.qkv) + n * (turning + pool.kv_heads) * dim;
    T* queries = static_cast<T*>(call.queries) + n * heads * dim;
    T* keys = static_cast<T*>(pool.base) + call.pages[n] * pool.page_stride +
              call.offsets[n] * pool.token_stride;
    const float* cos = call.cos + n * (dim / 2);
    const float* sin = call.sin + n * (dim / 2);
    for (int64_t head = 0; head < turning; ++head) {
      T* out = head < heads ? queries + head * dim : keys + (head - heads) * dim;
      const T* weight = norm ? norm + head * dim : nullptr;
      rotate_head(token + head * dim, weight, cos, sin, out, dim, call.eps);
    }
    std::memcpy(keys + pool.value_offset, token + turning * dim, pool.kv_heads * dim * sizeof(T));
  }
}

}  // namespace
