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

#include "variant.h"

namespace {

using at::Tensor;
using namespace sluice;

// Best last.
const std::vector<const Variant*>& variants() {
  static const std::vector<const Variant*> all = {
      &variant_generic,
#if defined(__x86_64__)
      &variant_avx2, &variant_avx512, &variant_avx512_bf16, &variant_amx,
#endif
  };
  return all;
}

std::atomic<const Variant*> chosen{nullptr};

const Variant& variant() {
  const Variant* found = chosen.load();
  if (found) return *found;
  for (const Variant* one : variants()) {
    if (one->runs_here()) found = one;
  }
  chosen.store(found);
  return *found;
}

std::string isa() { return variant().name; }

std::vector<std::string> isas() {
  std::vector<std::string> names;
  for (const Variant* one : variants()) {
    if (one->runs_here()) names.emplace_back(one->name);
  }
  return names;
}

void use_isa(std::string name) {
  for (const Variant* one : variants()) {
    if (name == one->name && one->runs_here()) return chosen.store(one);
  }
  TORCH_CHECK(false, "isa: '", name, "' is not allowed; allowed: ", c10::Join(", ", isas()));
}

Dtype dtype_of(const Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat) return Dtype::f32;
  TORCH_CHECK(tensor.scalar_type() == at::kBFloat16, "dtype: ", tensor.scalar_type(),
              " is not allowed; allowed: float32, bfloat16");
  return Dtype::bf16;
}

void check(const Tensor& tensor, at::ScalarType dtype, at::IntArrayRef sizes, const char* name) {
  TORCH_CHECK(tensor.device().is_cpu() && tensor.is_contiguous() &&
                  tensor.scalar_type() == dtype && tensor.sizes() == sizes,
              name, ": ", tensor.scalar_type(), " ", tensor.sizes(),
              " is not allowed; allowed: contiguous ", dtype, " ", sizes, " on the CPU");
}

// Rows that are worth a thread of their own, for rows of so many numbers.
int64_t grain(int64_t width) { return std::max<int64_t>(1, 8192 / std::max<int64_t>(1, width)); }

Tensor normed(const Tensor& x, const Tensor* delta, const Tensor& weight, double eps) {
  const int64_t rows = x.size(0), width = x.size(1);
  check(x, weight.scalar_type(), {rows, width}, "x");
  if (delta) check(*delta, x.scalar_type(), {rows, width}, "delta");
  check(weight, x.scalar_type(), {width}, "weight");
  Tensor out = at::empty_like(x);
  const AddNorm call{x.mutable_data_ptr(),    delta ? delta->const_data_ptr() : nullptr,
                     weight.const_data_ptr(), out.mutable_data_ptr(),
                     width,                   static_cast<float>(eps)};
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

// pool: [page, layer, 2, token, kv_head, dim].
Pool layer_of(const Tensor& pool, int64_t layer) {
  TORCH_CHECK(pool.dim() == 6 && pool.is_contiguous() && pool.device().is_cpu() &&
                  pool.size(2) == 2 && 0 <= layer && layer < pool.size(1),
              "pool: ", pool.sizes(), " has no layer ", layer);
  char* base = static_cast<char*>(pool.mutable_data_ptr());
  return Pool{base + layer * pool.stride(1) * pool.itemsize(),
              pool.stride(0),
              pool.stride(2),
              pool.size(3),
              pool.size(4),
              pool.size(5)};
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

// Query tokens of a task of a row that extends: enough columns that a block of keys pays.
constexpr int64_t COLUMNS = 96;

// Rows that extend are cut by query token and key head, rows that decode by key head if there are
// few. begins: [rows + 1]; contexts: [rows].
std::vector<AttentionTask> tasks_for(const Tensor& rows, const Tensor& begins,
                                     const Tensor& contexts, int64_t heads, int64_t kv_heads) {
  const auto row = rows.const_data_ptr<int64_t>();
  const auto begin = begins.const_data_ptr<int64_t>();
  const auto context = contexts.const_data_ptr<int64_t>();
  const int64_t count = rows.size(0), wanted = 4 * at::get_num_threads();
  const int64_t piece = std::max<int64_t>(2, COLUMNS * kv_heads / heads);
  const int64_t share = count >= wanted ? kv_heads : std::max<int64_t>(1, kv_heads * count / wanted);
  std::vector<AttentionTask> tasks;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t tokens = begin[i + 1] - begin[i], known = context[i] - tokens;
    const int64_t heads_at_once = tokens > 1 ? 1 : share;
    for (int64_t kv = 0; kv < kv_heads; kv += heads_at_once) {
      const int64_t kv_end = std::min(kv + heads_at_once, kv_heads);
      for (int64_t from = 0; from < tokens; from += piece) {
        tasks.push_back({row[i], begin[i] + from, std::min(piece, tokens - from), known + from, kv,
                         kv_end});
      }
    }
  }
  return tasks;
}

// Threads take the next task when they are done with one: contexts differ in length.
void run(const Attention& call, Dtype dtype, const std::vector<AttentionTask>& tasks) {
  int64_t numbers = 0;
  for (const AttentionTask& task : tasks) {
    numbers = std::max(numbers, variant().attend_scratch(call, task));
  }
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
  run(call, dtype_of(queries), tasks_for(rows, begins, contexts, heads, place.kv_heads));
  return out;
}

std::tuple<Tensor, Tensor> best(const Tensor& logits) {
  const int64_t rows = logits.size(0), vocabulary = logits.size(1);
  check(logits, at::kFloat, {rows, vocabulary}, "logits");
  Tensor peaks = at::empty({rows}, logits.options());
  Tensor tokens = at::empty({rows}, logits.options().dtype(at::kLong));
  const Best call{logits.const_data_ptr<float>(), peaks.mutable_data_ptr<float>(),
                  tokens.mutable_data_ptr<int64_t>(), vocabulary};
  at::parallel_for(0, rows, grain(vocabulary), [&](int64_t begin, int64_t end) {
    variant().best(call, begin, end);
  });
  return {peaks, tokens};
}

Tensor draw(const Tensor& logits, const Tensor& temperatures, const Tensor& uniforms) {
  const int64_t rows = logits.size(0), vocabulary = logits.size(1);
  check(logits, at::kFloat, {rows, vocabulary}, "logits");
  check(temperatures, at::kFloat, {rows}, "temperatures");
  check(uniforms, at::kDouble, {rows}, "uniforms");
  Tensor tokens = at::empty({rows}, logits.options().dtype(at::kLong));
  const Draw call{logits.const_data_ptr<float>(), temperatures.const_data_ptr<float>(),
                  uniforms.const_data_ptr<double>(), tokens.mutable_data_ptr<int64_t>(),
                  vocabulary};
  at::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
    variant().draw(call, begin, end);
  });
  return tokens;
}

}  // namespace

TORCH_LIBRARY(sluice, library) {
  library.def("isa() -> str", isa);
  library.def("isas() -> str[]", isas);
  library.def("use_isa(str name) -> ()", use_isa);
  library.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  library.def("add_rms_norm(Tensor(a!) x, Tensor delta, Tensor weight, float eps) -> Tensor");
  library.def("silu_and_multiply(Tensor gate_up) -> Tensor");
  library.def(
      "rotate_and_store(Tensor qkv, Tensor? head_norm, float eps, Tensor cos, Tensor sin, "
      "Tensor(a!) pool, int layer, Tensor pages, Tensor offsets) -> Tensor");
  library.def(
      "paged_attention(Tensor queries, Tensor pool, int layer, Tensor page_table, Tensor rows, "
      "Tensor begins, Tensor contexts, float scale) -> Tensor");
  library.def("to_float(Tensor x) -> Tensor");
  library.def("best(Tensor logits) -> (Tensor, Tensor)");
  library.def("draw(Tensor logits, Tensor temperatures, Tensor uniforms) -> Tensor");
}

TORCH_LIBRARY_IMPL(sluice, CPU, library) {
  library.impl("rms_norm", rms_norm);
  library.impl("add_rms_norm", add_rms_norm);
  library.impl("silu_and_multiply", silu_and_multiply);
  library.impl("rotate_and_store", rotate_and_store);
  library.impl("paged_attention", paged_attention);
  library.impl("to_float", to_float);
  library.impl("best", best);
  library.impl("draw", draw);
}
