// All layers of a decoder in one call, every thread with a shard of each matrix: tensor parallelism
// (Shoeybi et al. 2019), over threads. A thread has its own heads and its own part of the
// feed-forward part, so that the threads meet four times a layer and not at every operator.
#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <omp.h>
#include <torch/library.h>

#include <exception>
#include <mutex>
#include <vector>

#include "attention_tasks.h"
#include "barrier.h"
#include "checks.h"
#include "choice.h"
#include "int8_product.h"

namespace {

using at::Tensor;
using namespace sluice;

// A matrix [out, in]: plain, packed for oneDNN, or of 8 bits with scales and the number of outputs.
struct Matrix {
  Tensor weight, scales;
  int64_t width;
};

Tensor int8_product(const Tensor& x, const Matrix& matrix) {
  Tensor out = at::empty({x.size(0), matrix.width}, x.options());
  const Int8Product call = int8_call(x, matrix.weight, matrix.scales, out);
  multiply_int8(call, dtype_of(x), 0, matrix.weight.size(0));
  return out;
}

// x weight^T, on this thread alone. oneDNN's where the weight was packed for it.
Tensor product(const Tensor& x, const Matrix& matrix) {
  const Tensor& weight = matrix.weight;
  if (matrix.scales.defined()) return int8_product(x, matrix);
  using Scalars = c10::List<std::optional<at::Scalar>>;
  using Linear = Tensor(const Tensor&, const Tensor&, const std::optional<Tensor>&,
                        std::string_view, Scalars,
                        std::optional<std::string_view>);
  if (!weight.is_mkldnn()) return at::linear(x, weight);
  static const auto packed = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                                 .typed<Linear>();
  return packed.call(x, weight, std::nullopt, "none", Scalars(), "");
}

// What one thread has of a layer.
struct Shard {
  Matrix qkv, output, gate_up, down;
};

struct Layer {
  const void* attention_norm;
  const void* head_norm;  // may be null
  const void* mlp_norm;
  Pool pool;
  std::vector<Shard> shards;
};

// The first error of any thread; after it the others go on meeting, and compute no more.
class Errors {
 public:
  template <typename Work>
  void guard(const Work& work) {
    if (any_.load(std::memory_order_relaxed)) return;
    try {
      work();
    } catch (...) {
      const std::lock_guard<std::mutex> held(lock_);
      if (!any_.exchange(true)) first_ = std::current_exception();
    }
  }

  void rethrow() const {
    if (first_) std::rethrow_exception(first_);
  }

 private:
  std::atomic<bool> any_{false};
  std::mutex lock_;
  std::exception_ptr first_;
};

// What the threads of a call share.
struct Step {
  std::vector<Layer> layers;
  int64_t threads, tokens, hidden, heads, kv_heads, dim;  // heads: of one shard
  Dtype dtype;
  at::TensorOptions options;
  float eps, scale;
  const float *cos, *sin;
  const int64_t *pages, *offsets, *page_table;
  int64_t table_stride;
  std::vector<AttentionTask> tasks;
  void* x;
  Tensor normed;
  std::vector<Tensor> deltas;  // what each shard adds to x
  Barrier barrier;
  Errors errors;
};

// One thread's part of a step.
class Worker {
 public:
  Worker(Step& step, int64_t index) : step_(step), index_(index) {}

  void run() {
    const c10::InferenceMode without_gradients;
    meet([&] { add_and_norm(0, step_.layers.front().attention_norm); });
    for (size_t i = 0; i < step_.layers.size(); ++i) {
      const Layer& layer = step_.layers[i];
      const bool last = i + 1 == step_.layers.size();
      meet([&] { step_.deltas[index_] = attend(layer); });
      meet([&] { add_and_norm(step_.threads, layer.mlp_norm); });
      meet([&] { step_.deltas[index_] = feed_forward(layer); });
      meet([&] {
        add_and_norm(step_.threads, last ? nullptr : step_.layers[i + 1].attention_norm);
      });
    }
  }

 private:
  template <typename Work>
  void meet(const Work& work) {
    step_.errors.guard(work);
    RECORD_FUNCTION("sluice::wait", c10::ArrayRef<c10::IValue>{});
    step_.barrier.wait();
  }

  // x += deltas, and its norm, for this thread's share of the tokens.
  void add_and_norm(int64_t deltas, const void* weight) {
    std::vector<const void*> parts;
    for (int64_t i = 0; i < deltas; ++i) parts.push_back(step_.deltas[i].const_data_ptr());
    const AddNorm call{step_.x,      parts.data(), deltas, weight, step_.normed.mutable_data_ptr(),
                       step_.hidden, step_.eps};
    variant().add_norm(call, step_.dtype, step_.tokens * index_ / step_.threads,
                       step_.tokens * (index_ + 1) / step_.threads);
  }

  Tensor attend(const Layer& layer) {
    RECORD_FUNCTION("sluice::attend", c10::ArrayRef<c10::IValue>{});
    const Shard& mine = layer.shards[index_];
    const int64_t tokens = step_.tokens, width = step_.heads * step_.dim;
    Pool pool = layer.pool;
    pool.base = static_cast<char*>(pool.base) +
                index_ * step_.kv_heads * step_.dim * step_.options.dtype().itemsize();
    pool.kv_heads = step_.kv_heads;
    const Tensor qkv = product(step_.normed, mine.qkv);
    const Tensor queries = at::empty({tokens, width}, step_.options);
    variant().rotate_and_store(
        {qkv.const_data_ptr(), layer.head_norm, step_.cos, step_.sin, step_.pages, step_.offsets,
         queries.mutable_data_ptr(), pool, step_.heads, step_.eps},
        step_.dtype, 0, tokens);
    const Tensor out = at::empty({tokens, width}, step_.options);
    const Attention call{queries.const_data_ptr(), out.mutable_data_ptr(), pool, step_.page_table,
                         step_.table_stride,       step_.heads,            step_.scale};
    if (scratch_.empty()) scratch_.resize(attention_scratch(call, step_.tasks));
    for (const AttentionTask& task : step_.tasks) {
      variant().attend(call, step_.dtype, task, scratch_.data());
    }
    return product(out, mine.output);
  }

  Tensor feed_forward(const Layer& layer) {
    const Shard& mine = layer.shards[index_];
    const Tensor both = product(step_.normed, mine.gate_up);
    const int64_t width = both.size(1) / 2;
    const Tensor gated = at::empty({step_.tokens, width}, step_.options);
    variant().gate({both.const_data_ptr(), gated.mutable_data_ptr(), width}, step_.dtype, 0,
                   step_.tokens);
    return product(gated, mine.down);
  }

  Step& step_;
  const int64_t index_;
  std::vector<float> scratch_;
};

constexpr int64_t NORMS = 2, MATRICES = 4;

// x [n, hidden] becomes what leaves the last layer. norms: attention's and the feed-forward part's
// of each layer; head_norms: [heads + kv_heads of a shard, dim] of each layer, or none; weights:
// qkv, output, gate_up and down of each shard of each layer; scales: of each of these, where they are
// of 8 bits, else none; widths: their outputs. Keys and values of the first one are those of layer
// `first_layer` of the pool.
void sharded_layers(const Tensor& x, const std::vector<Tensor>& norms,
                    const std::vector<Tensor>& head_norms, const std::vector<Tensor>& weights,
                    const std::vector<Tensor>& scales, const std::vector<int64_t>& widths,
                    int64_t shards, double eps, const Tensor& cos, const Tensor& sin,
                    const Tensor& pool, int64_t first_layer, const Tensor& pages,
                    const Tensor& offsets, const Tensor& page_table, const Tensor& rows,
                    const Tensor& begins, const Tensor& contexts, double scale) {
  const int64_t layers = norms.size() / NORMS, n = x.size(0), hidden = x.size(1);
  const int64_t count = rows.size(0);
  check(x, pool.scalar_type(), {n, hidden}, "x");
  const Pool first = layer_of(pool, 0);
  TORCH_CHECK(shards > 0 && first.kv_heads % shards == 0, "shards: ", shards,
              " is not allowed; allowed: divisors of ", first.kv_heads);
  TORCH_CHECK(layers > 0 && static_cast<int64_t>(weights.size()) == layers * shards * MATRICES,
              "weights: ", weights.size(), " is not allowed; allowed: ", layers * shards * MATRICES);
  TORCH_CHECK(widths.size() == weights.size() &&
                  (scales.empty() || scales.size() == weights.size()),
              "scales: ", scales.size(), " is not allowed; allowed: 0 or ", weights.size());
  const int64_t kv_heads = first.kv_heads / shards;
  const int64_t heads = widths[0] / first.dim - 2 * kv_heads;
  check(cos, at::kFloat, {n, first.dim / 2}, "cos");
  check(sin, at::kFloat, {n, first.dim / 2}, "sin");
  check(pages, at::kLong, {n}, "pages");
  check(offsets, at::kLong, {n}, "offsets");
  check(page_table, at::kLong, {page_table.size(0), page_table.size(1)}, "page_table");
  check(rows, at::kLong, {count}, "rows");
  check(begins, at::kLong, {count + 1}, "begins");
  check(contexts, at::kLong, {count}, "contexts");
  const Rows of_step{rows.const_data_ptr<int64_t>(), begins.const_data_ptr<int64_t>(),
                     contexts.const_data_ptr<int64_t>(), count};
  Step step{{},
            shards,
            n,
            hidden,
            heads,
            kv_heads,
            first.dim,
            dtype_of(x),
            x.options(),
            static_cast<float>(eps),
            static_cast<float>(scale),
            cos.const_data_ptr<float>(),
            sin.const_data_ptr<float>(),
            pages.const_data_ptr<int64_t>(),
            offsets.const_data_ptr<int64_t>(),
            page_table.const_data_ptr<int64_t>(),
            page_table.size(1),
            attention_tasks(of_step, heads, kv_heads, 1),
            x.mutable_data_ptr(),
            at::empty_like(x),
            std::vector<Tensor>(shards),
            Barrier(shards),
            {}};
  for (int64_t i = 0; i < layers; ++i) {
    for (int64_t j = 0; j < NORMS; ++j) {
      check(norms[i * NORMS + j], x.scalar_type(), {hidden}, "norms");
    }
    if (!head_norms.empty()) {
      check(head_norms[i], x.scalar_type(), {heads + kv_heads, first.dim}, "head_norms");
    }
    Layer layer{norms[i * NORMS].const_data_ptr(),
                head_norms.empty() ? nullptr : head_norms[i].const_data_ptr(),
                norms[i * NORMS + 1].const_data_ptr(),
                layer_of(pool, first_layer + i),
                {}};
    for (int64_t j = i * shards; j < (i + 1) * shards; ++j) {
      const auto of = [&](int64_t k) {
        const int64_t at = j * MATRICES + k;
        return Matrix{weights[at], scales.empty() ? Tensor() : scales[at], widths[at]};
      };
      layer.shards.push_back({of(0), of(1), of(2), of(3)});
    }
    step.layers.push_back(std::move(layer));
  }
  bool whole = true;
#pragma omp parallel num_threads(shards)
  {
    if (omp_get_num_threads() == shards) {
      Worker(step, omp_get_thread_num()).run();
    } else {
#pragma omp single
      whole = false;
    }
  }
  TORCH_CHECK(whole, "shards: ", shards, " threads cannot be had (OMP_THREAD_LIMIT?)");
  step.errors.rethrow();
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(sluice, library) {
  library.def(
      "sharded_layers(Tensor(a!) x, Tensor[] norms, Tensor[] head_norms, Tensor[] weights, "
      "Tensor[] scales, int[] widths, int shards, float eps, Tensor cos, Tensor sin, Tensor(b!) pool, int first_layer, "
      "Tensor pages, Tensor offsets, Tensor page_table, Tensor rows, Tensor begins, "
      "Tensor contexts, float scale) -> ()");
}

TORCH_LIBRARY_IMPL(sluice, CompositeExplicitAutograd, library) {
  library.impl("sharded_layers", sharded_layers);
}
