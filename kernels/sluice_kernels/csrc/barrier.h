// Where the threads of a call wait for each other.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace sluice {

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// A thread that waits spins for a while, since the others mostly come at once, and then sleeps: the
// one it waits for may be without a processor, and can have this one's.
class Barrier {
 public:
  explicit Barrier(int64_t threads) : threads_(threads) {}

  // Returns when all threads have called it; what each wrote before is seen by all after.
  void wait() {
    const uint32_t round = round_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      round_.notify_all();
    } else if (!spun_through(round)) {
      round_.wait(round, std::memory_order_acquire);
    }
  }

 private:
  static constexpr std::chrono::microseconds PATIENCE{100};
  static constexpr int PAUSES = 32;  // between two looks at the clock

  bool spun_through(uint32_t round) const {
    const auto end = std::chrono::steady_clock::now() + PATIENCE;
    do {
      for (int i = 0; i < PAUSES; ++i) {
        if (round_.load(std::memory_order_acquire) != round) return true;
        pause();
      }
    } while (std::chrono::steady_clock::now() < end);
    return false;
  }

  const int64_t threads_;
  std::atomic<int64_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> round_{0};
};

}  // namespace sluice
