#include "choice.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <atomic>

namespace sluice {
namespace {

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

}  // namespace

const Variant& variant() {
  const Variant* found = chosen.load();
  if (found) return *found;
  for (const Variant* one : variants()) {
    if (one->runs_here()) found = one;
  }
  chosen.store(found);
  return *found;
}

std::vector<std::string> runnable() {
  std::vector<std::string> names;
  for (const Variant* one : variants()) {
    if (one->runs_here()) names.emplace_back(one->name);
  }
  return names;
}

void use(const std::string& name) {
  for (const Variant* one : variants()) {
    if (name == one->name && one->runs_here()) return chosen.store(one);
  }
  TORCH_CHECK(false, "isa: '", name, "' is not allowed; allowed: ", c10::Join(", ", runnable()));
}

}  // namespace sluice
