// What a variant offers: the same functions, compiled for one instruction set. Pointers and sizes
// only; it knows no torch. Every function computes a range, so that the caller may share the work.
#pragma once

#include <cstdint>

namespace sluice {

enum class Dtype { f32, bf16 };

// x becomes x + all deltas, and normed = rms_norm(x) x weight. Without a weight there is no norm.
struct AddNorm {
  void* x;                    // [n, width]
  const void* const* deltas;  // [n, width] each
  int64_t delta_count;
  const void* weight;         // [width], or null
  void* normed;               // [n, width]
  int64_t width;
  float eps;
};

// out = silu(gate) x up.
struct Gate {
  const void* gate_up;  // [n, 2 x width], gate first
  void* out;            // [n, width]
  int64_t width;
};

struct ToFloat {
  const void* from;  // bfloat16
  float* to;
};

// Where keys and values lie: [page, layer, 2, token, kv_head, dim], of which `base` is one layer, or
// some of its key heads.
struct Pool {
  void* base;
  int64_t page_stride;   // numbers from one page to the next
  int64_t value_offset;  // numbers from a page's keys to its values
  int64_t token_stride;  // numbers from one token to the next
  int64_t page_size;     // tokens
  int64_t kv_heads;
  int64_t dim;
};

// Norms and rotates queries and keys, and stores keys and values in the pool.
struct RotateAndStore {
  const void* qkv;        // [n, heads + 2 x kv_heads, dim]
  const void* head_norm;  // [heads + kv_heads, dim], or null
  const float* cos;       // [n, dim / 2]
  const float* sin;       // [n, dim / 2]
  const int64_t* pages;   // [n]
  const int64_t* offsets; // [n]
  void* queries;          // [n, heads, dim]
  Pool pool;
  int64_t heads;
  float eps;
};

// A piece of attention: some tokens of one row, for some key heads.
struct AttentionTask {
  int64_t row;          // row of the page table
  int64_t first_token;  // flat number of the first query token
  int64_t tokens;
  int64_t position;     // of the first query token in its row
  int64_t kv_begin;
  int64_t kv_end;
};

struct Attention {
  const void* queries;        // [n, heads, dim]
  void* out;                  // [n, heads, dim]
  Pool pool;
  const int64_t* page_table;  // [rows, table_stride]
  int64_t table_stride;
  int64_t heads;
  float scale;
};

// In place of a token, for a row whose largest logit is not finite.
constexpr int64_t NO_TOKEN = -1;

// One token a row, by inverting the distribution softmax(logits / temperature); the first of the
// largest logits below a temperature.
struct Draw {
  const float* logits;         // [m, vocabulary]
  const float* temperatures;   // [m]
  const double* uniforms;      // [m], in [0, 1)
  int64_t* tokens;             // [m]
  int64_t vocabulary;
  double greedy_below;
};

// Outputs whose weights lie together, and the units in which inputs are padded with zeros.
constexpr int64_t INT8_PANEL = 64, INT8_DEPTH = 64;

// out = (x weights^T) x scales, for weights of 8 bits.
struct Int8Product {
  const void* x;          // [rows, depth]
  const int8_t* weights;  // [panels, padded_depth / 4, INT8_PANEL, 4]
  const float* scales;    // [panels x INT8_PANEL]
  void* out;              // [rows, width]
  int64_t rows, depth, padded_depth, width;
};

struct Variant {
  const char* name;
  bool (*runs_here)();
  void (*add_norm)(const AddNorm&, Dtype, int64_t begin, int64_t end);
  void (*gate)(const Gate&, Dtype, int64_t begin, int64_t end);
  void (*to_float)(const ToFloat&, int64_t begin, int64_t end);
  void (*rotate_and_store)(const RotateAndStore&, Dtype, int64_t begin, int64_t end);
  // Numbers of `scratch` that one call of `attend` needs for a task of so many tokens.
  int64_t (*attend_scratch)(const Attention&, const AttentionTask&);
  void (*attend)(const Attention&, Dtype, const AttentionTask&, float* scratch);
  void (*draw)(const Draw&, int64_t begin, int64_t end);
  // Panels [begin, end), with so many numbers of scratch.
  int64_t (*int8_scratch)(const Int8Product&);
  void (*int8_product)(const Int8Product&, Dtype, int64_t begin, int64_t end, float* scratch);
};

extern const Variant variant_generic;
#if defined(__x86_64__)
extern const Variant variant_avx2;
extern const Variant variant_avx512;
extern const Variant variant_avx512_bf16;
extern const Variant variant_amx;
#endif

}  // namespace sluice
