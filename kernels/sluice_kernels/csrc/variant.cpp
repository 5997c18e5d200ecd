// One variant: the kernels as compiled with the flags of this instruction set, in one table.
// SLUICE_VARIANT is its name.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AMX_BF16__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "attention.h"
#include "draw.h"
#include "int8.h"
#include "pointwise.h"
#include "variant.h"

#define JOIN(a, b) a##b
#define EXPAND(a, b) JOIN(a, b)
#define QUOTE(a) #a
#define TEXT(a) QUOTE(a)

namespace {

using sluice::Dtype;

#if defined(__AMX_BF16__)
// The kernel saves tile registers only for a process that asked for them.
bool tiles_are_granted() {
  constexpr long REQUEST = 0x1023, TILE_DATA = 18;
  unsigned a, b, c, d;
  __cpuid_count(7, 0, a, b, c, d);
  const bool there = (d >> 22 & 1) && (d >> 24 & 1) && (d >> 25 & 1);
  return there && syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}
#endif

bool runs_here() {
#if defined(__AMX_BF16__)
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi2") &&
         tiles_are_granted();
#elif defined(__AVX512BF16__)
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi2");
#elif defined(__AVX512F__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#elif defined(__AVX2__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return true;
#endif
}

template <typename Call, void (*Wide)(const Call&, int64_t, int64_t),
          void (*Narrow)(const Call&, int64_t, int64_t)>
void by_type(const Call& call, Dtype dtype, int64_t begin, int64_t end) {
  (dtype == Dtype::f32 ? Wide : Narrow)(call, begin, end);
}

void attend(const sluice::Attention& call, Dtype dtype, const sluice::AttentionTask& task,
            float* scratch) {
  (dtype == Dtype::f32 ? attend_as<float> : attend_as<bf16>)(call, task, scratch);
}

}  // namespace

namespace sluice {

extern const Variant EXPAND(variant_, SLUICE_VARIANT) = {
    TEXT(SLUICE_VARIANT),
    runs_here,
    by_type<AddNorm, add_norm<float>, add_norm<bf16>>,
    by_type<Gate, gate<float>, gate<bf16>>,
    to_float,
    by_type<RotateAndStore, rotate_and_store<float>, rotate_and_store<bf16>>,
    attend_scratch,
    attend,
    draw,
    int8_scratch,
    int8_product,
};

}  // namespace sluice
