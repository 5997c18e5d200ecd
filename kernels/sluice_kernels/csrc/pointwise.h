// Norm, gate, rotation: kernels that read every number once. Loops are left to the compiler to
// vectorise; sums in float32.
#pragma once

#include <cmath>

#include "number.h"
#include "variant.h"

namespace {

template <typename T>
float inverse_rms(const T* x, int64_t width, float eps) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < width; ++i) {
    const float value = widen(x[i]);
    sum += value * value;
  }
  return 1.0f / std::sqrt(sum / static_cast<float>(width) + eps);
}

template <typename T>
void add(T* __restrict x, const T* __restrict delta, int64_t width) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) narrow(widen(x[i]) + widen(delta[i]), x[i]);
}

template <typename T>
void add_norm(const sluice::AddNorm& call, int64_t begin, int64_t end) {
  const T* weight = static_cast<const T*>(call.weight);
  for (int64_t row = begin; row < end; ++row) {
    T* x = static_cast<T*>(call.x) + row * call.width;
    T* __restrict normed = static_cast<T*>(call.normed) + row * call.width;
    if (call.delta) add(x, static_cast<const T*>(call.delta) + row * call.width, call.width);
    const float scale = inverse_rms(x, call.width, call.eps);
#pragma omp simd
    for (int64_t i = 0; i < call.width; ++i) {
      narrow(widen(x[i]) * scale * widen(weight[i]), normed[i]);
    }
  }
}

template <typename T>
void gate(const sluice::Gate& call, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* __restrict gates = static_cast<const T*>(call.gate_up) + row * 2 * call.width;
    const T* __restrict ups = gates + call.width;
    T* __restrict out = static_cast<T*>(call.out) + row * call.width;
#pragma omp simd
    for (int64_t i = 0; i < call.width; ++i) {
      const float x = widen(gates[i]);
      narrow(x / (1.0f + exponential(-x)) * widen(ups[i]), out[i]);
    }
  }
}

// The first and the second half of a head are one pair each.
template <typename T>
void rotate_head(const T* __restrict x, const T* __restrict weight, const float* __restrict cos,
                 const float* __restrict sin, T* __restrict out, int64_t dim, float eps) {
  const int64_t half = dim / 2;
  const float scale = weight ? inverse_rms(x, dim, eps) : 1.0f;
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const float first = widen(x[i]) * scale * (weight ? widen(weight[i]) : 1.0f);
    const float second = widen(x[half + i]) * scale * (weight ? widen(weight[half + i]) : 1.0f);
    narrow(first * cos[i] - second * sin[i], out[i]);
    narrow(second * cos[i] + first * sin[i], out[half + i]);
  }
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
              call.offsets[n] * pool.kv_heads * dim;
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
