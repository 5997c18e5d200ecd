// The kernels as torch operators `sluice::…`: checks what comes in, picks the variant, shares the
// work among the threads of torch's pool. Shapes are described in `sluice_kernels/ops.py`.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <atomic>
#include <string>
#include <vector>

#include "attention_tasks.h"
#include "checks.h"
#include "choice.h"
#include "int8_product.h"

namespace {

using at::Tensor;
using namespace sluice;

std::string isa() { return variant().name; }

// Rows that are worth a thread of their own, for rows of so many numbers.
int64_t grain(int64_t width) { return std::max<int64_t>(1, 8192 / std::max<int64_t>(1, width)); }

Tensor normed(const Tensor& x, const Tensor* delta, const Tensor& weight, double eps) {
  const int64_t rows = x.size(0), width = x.size(1);
  check(x, weight.scalar_type(), {rows, width}, "x");
  if (delta) check(*delta, x.scalar_type(), {rows, width}, "delta");
  check(weight, x.scalar_type(), {width}, "weight");
  Tensor out = at::empty_like(x);
  const void* added = delta ? delta->const_data_ptr() : nullptr;
  const AddNorm call{x.mutable_data_ptr(),   &added, delta != nullptr, weight.const_data_ptr(),
                     out.mutable_data_ptr(), width,  static_cast<float>(eps)};
  const Dtype dtype = dtype_of(x);
  at::parallel_for(0, rows, grain(width), [&](int64_t begin, int64_t end) {
    variant().add_norm(call, dtype, begin, end);
  });
  return out;
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  return normed(x, nullptr, weight, eps);
}

Tensor add_rms_norm(const Tensor& x, const Tensor& delta, const Tensor& weight, double eps) {
  return normed(x, &delta, weight, eps);
}

Tensor silu_and_multiply(const Tensor& gate_up) {
  const int64_t rows = gate_up.size(0), width = gate_up.size(1) / 2;
  check(gate_up, gate_up.scalar_type(), {rows, 2 * width}, "gate_up");
  Tensor out = at::empty({rows, width}, gate_up.options());
  const Gate call{gate_up.const_data_ptr(), out.mutable_data_ptr(), width};
  const Dtype dtype = dtype_of(gate_up);
  at::parallel_for(0, rows, grain(4 * width), [&](int64_t begin, int64_t end) {
    variant().gate(call, dtype, begin, end);
  });
  return out;
}

Tensor to_float(const Tensor& x) {
  check(x, at::kBFloat16, x.sizes(), "x");
  Tensor out = at::empty(x.sizes(), x.options().dtype(at::kFloat));
  const ToFloat call{x.const_data_ptr(), out.mutable_data_ptr<float>()};
  at::parallel_for(0, x.numel(), 1 << 16, [&](int64_t begin, int64_t end) {
    variant().to_float(call, begin, end);
  });
  return out;
}

// Panels that are worth a thread of their own, for so many rows.
int64_t panel_grain(const Int8Product& call) {
  return std::max<int64_t>(1, (1 << 16) / std::max<int64_t>(1, call.padded_depth * INT8_PANEL));
}

Tensor int8_product(const Tensor& x, const Tensor& weights, const Tensor& scales, int64_t width) {
  Tensor out = at::empty({x.size(0), width}, x.options());
  const Int8Product call = int8_call(x, weights, scales, out);
  const Dtype dtype = dtype_of(x);
  at::parallel_for(0, weights.size(0), panel_grain(call), [&](int64_t begin, int64_t end) {
    multiply_int8(call, dtype, begin, end);
  });
  return out;
}

Tensor rotate_and_store(const Tensor& qkv, const std::optional<Tensor>& head_norm, double eps,
                        const Tensor& cos, const Tensor& sin, const Tensor& pool, int64_t layer,
                        const Tensor& pages, const Tensor& offsets) {
  const Pool place = layer_of(pool, layer);
  const int64_t n = qkv.size(0), heads = qkv.size(1) - 2 * place.kv_heads, dim = place.dim;
  TORCH_CHECK(heads > 0 && dim % 2 == 0, "qkv: ", qkv.sizes(), " does not fit ", pool.sizes());
  check(qkv, pool.scalar_type(), {n, heads + 2 * place.kv_heads, dim}, "qkv");
  if (head_norm) check(*head_norm, qkv.scalar_type(), {heads + place.kv_heads, dim}, "head_norm");
  check(cos, at::kFloat, {n, dim / 2}, "cos");
  check(sin, at::kFloat, {n, dim / 2}, "sin");
  check(pages, at::kLong, {n}, "pages");
  check(offsets, at::kLong, {n}, "offsets");
  Tensor queries = at::empty({n, heads, dim}, qkv.options());
  const RotateAndStore call{qkv.const_data_ptr(),
                            head_norm ? head_norm->const_data_ptr() : nullptr,
                            cos.const_data_ptr<float>(),
                            sin.const_data_ptr<float>(),
                            pages.const_data_ptr<int64_t>(),
                            offsets.const_data_ptr<int64_t>(),
                            queries.mutable_data_ptr(),
                            place,
                            heads,
                            static_cast<float>(eps)};
  const Dtype dtype = dtype_of(qkv);
  at::parallel_for(0, n, grain(4 * qkv.size(1) * dim), [&](int64_t begin, int64_t end) {
    variant().rotate_and_store(call, dtype, begin, end);
  });
  return queries;
}

// Threads take the next task when they are done with one: contexts differ in length.
void run(const Attention& call, Dtype dtype, const std::vector<AttentionTask>& tasks) {
  const int64_t numbers = attention_scratch(call, tasks);
  std::atomic<size_t> next{0};
  at::parallel_for(0, at::get_num_threads(), 1, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(begin < end ? numbers : 0);
    for (size_t at = next++; at < tasks.size(); at = next++) {
      variant().attend(call, dtype, tasks[at], scratch.data());
    }
  });
}

Tensor paged_attention(const Tensor& queries, const Tensor& pool, int64_t layer,
                       const Tensor& page_table, const Tensor& rows, const Tensor& begins,
                       const Tensor& contexts, double scale) {
  const Pool place = layer_of(pool, layer);
  const int64_t count = rows.size(0), heads = queries.size(1);
  check(queries, pool.scalar_type(), {queries.size(0), heads, place.dim}, "queries");
  TORCH_CHECK(heads % place.kv_heads == 0, "queries: ", heads, " heads, ", place.kv_heads,
              " key heads");
  check(page_table, at::kLong, {page_table.size(0), page_table.size(1)}, "page_table");
  check(rows, at::kLong, {count}, "rows");
  check(begins, at::kLong, {count + 1}, "begins");
  check(contexts, at::kLong, {count}, "contexts");
  Tensor out = at::empty_like(queries);
  const Attention call{queries.const_data_ptr(),
                       out.mutable_data_ptr(),
                       place,
                       page_table.const_data_ptr<int64_t>(),
                       page_table.size(1),
                       heads,
                       static_cast<float>(scale)};
  const Rows step{rows.const_data_ptr<int64_t>(), begins.const_data_ptr<int64_t>(),
                  contexts.const_data_ptr<int64_t>(), count};
  const int64_t wanted = 4 * at::get_num_threads();
  run(call, dtype_of(queries), attention_tasks(step, heads, place.kv_heads, wanted));
  return out;
}

Tensor draw(const Tensor& logits, const Tensor& temperatures, const Tensor& uniforms,
            double greedy_below) {
  const int64_t rows = logits.size(0), vocabulary = logits.size(1);
  check(logits, at::kFloat, {rows, vocabulary}, "logits");
  check(temperatures, at::kFloat, {rows}, "temperatures");
  check(uniforms, at::kDouble, {rows}, "uniforms");
  Tensor tokens = at::empty({rows}, logits.options().dtype(at::kLong));
  const Draw call{logits.const_data_ptr<float>(), temperatures.const_data_ptr<float>(),
                  uniforms.const_data_ptr<double>(), tokens.mutable_data_ptr<int64_t>(),
                  vocabulary, greedy_below};
  at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
    variant().draw(call, begin, end);
  });
  return tokens;
}

}  // namespace

TORCH_LIBRARY(sluice, library) {
  library.def("isa() -> str", isa);
  library.def("isas() -> str[]", runnable);
  library.def("use_isa(str name) -> ()", [](std::string name) { use(name); });
  library.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  library.def("add_rms_norm(Tensor(a!) x, Tensor delta, Tensor weight, float eps) -> Tensor");
  library.def("silu_and_multiply(Tensor gate_up) -> Tensor");
  library.def(
      "rotate_and_store(Tensor qkv, Tensor? head_norm, float eps, Tensor cos, Tensor sin, "
      "Tensor(a!) pool, int layer, Tensor pages, Tensor offsets) -> Tensor");
  library.def(
      "paged_attention(Tensor queries, Tensor pool, int layer, Tensor page_table, Tensor rows, "
      "Tensor begins, Tensor contexts, float scale) -> Tensor");
  library.def("int8_product(Tensor x, Tensor weights, Tensor scales, int width) -> Tensor");
  library.def("to_float(Tensor x) -> Tensor");
  library.def(
      "draw(Tensor logits, Tensor temperatures, Tensor uniforms, float greedy_below) -> Tensor");
}

TORCH_LIBRARY_IMPL(sluice, CPU, library) {
  library.impl("rms_norm", rms_norm);
  library.impl("add_rms_norm", add_rms_norm);
  library.impl("silu_and_multiply", silu_and_multiply);
  library.impl("rotate_and_store", rotate_and_store);
  library.impl("paged_attention", paged_attention);
  library.impl("int8_product", int8_product);
  library.impl("to_float", to_float);
  library.impl("draw", draw);
}
