// A product with weights of 8 bits, as the operators call it: checks, and one thread's share.
#pragma once

#include <vector>

#include "checks.h"
#include "choice.h"

namespace sluice {

// The product of x [n, depth] with packed weights and their scales, into `out` [n, width].
inline Int8Product int8_call(const at::Tensor& x, const at::Tensor& weights,
                             const at::Tensor& scales, const at::Tensor& out) {
  const int64_t panels = weights.size(0), fours = weights.dim() == 4 ? weights.size(1) : 0;
  check(weights, at::kChar, {panels, fours, INT8_PANEL, 4}, "weights");
  check(scales, at::kFloat, {panels * INT8_PANEL}, "scales");
  const int64_t rows = x.size(0), depth = x.size(1), width = out.size(1);
  check(x, x.scalar_type(), {rows, depth}, "x");
  TORCH_CHECK(4 * fours % INT8_DEPTH == 0 && 4 * fours - INT8_DEPTH < depth && depth <= 4 * fours,
              "x: ", x.sizes(), " does not fit weights ", weights.sizes());
  TORCH_CHECK((panels - 1) * INT8_PANEL < width && width <= panels * INT8_PANEL, "width: ", width,
              " does not fit weights ", weights.sizes());
  return {x.const_data_ptr(), weights.const_data_ptr<int8_t>(), scales.const_data_ptr<float>(),
          out.mutable_data_ptr(), rows, depth, 4 * fours, width};
}

inline void multiply_int8(const Int8Product& call, Dtype dtype, int64_t begin, int64_t end) {
  static thread_local std::vector<float> scratch;
  const int64_t numbers = variant().int8_scratch(call);
  if (static_cast<int64_t>(scratch.size()) < numbers) scratch.resize(numbers);
  variant().int8_product(call, dtype, begin, end, scratch.data());
}

}  // namespace sluice
