// What the operators ask of the tensors that they are given.
#pragma once

#include <ATen/core/Tensor.h>

#include "variant.h"

namespace sluice {

inline Dtype dtype_of(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat) return Dtype::f32;
  TORCH_CHECK(tensor.scalar_type() == at::kBFloat16, "dtype: ", tensor.scalar_type(),
              " is not allowed; allowed: float32, bfloat16");
  return Dtype::bf16;
}

inline void check(const at::Tensor& tensor, at::ScalarType dtype, at::IntArrayRef sizes,
                  const char* name) {
  TORCH_CHECK(tensor.device().is_cpu() && tensor.is_contiguous() &&
                  tensor.scalar_type() == dtype && tensor.sizes() == sizes,
              name, ": ", tensor.scalar_type(), " ", tensor.sizes(),
              " is not allowed; allowed: contiguous ", dtype, " ", sizes, " on the CPU");
}

// One layer of a pool [page, layer, 2, token, kv_head, dim].
inline Pool layer_of(const at::Tensor& pool, int64_t layer) {
  TORCH_CHECK(pool.dim() == 6 && pool.is_contiguous() && pool.device().is_cpu() &&
                  pool.size(2) == 2 && 0 <= layer && layer < pool.size(1),
              "pool: ", pool.sizes(), " has no layer ", layer);
  char* base = static_cast<char*>(pool.mutable_data_ptr());
  return Pool{base + layer * pool.stride(1) * pool.itemsize(),
              pool.stride(0),
              pool.stride(2),
              pool.stride(3),
              pool.size(3),
              pool.size(4),
              pool.size(5)};
}

}  // namespace sluice
