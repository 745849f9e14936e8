#pragma once

#include <cstddef>
#include <cstdint>
#include <random>

namespace refit::testing {

/// The same numbers on every machine: the library's distributions differ.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t in(int64_t lo, int64_t hi) {
    return lo + static_cast<int64_t>(engine_() % static_cast<uint64_t>(hi - lo + 1));
  }
  bool one_of(int64_t n) { return in(1, n) == 1; }
  template <typename T, size_t kCount>
  T of(const T (&values)[kCount]) {
    return values[in(0, static_cast<int64_t>(kCount) - 1)];
  }
  std::byte byte() { return static_cast<std::byte>(engine_()); }

 private:
  std::mt19937_64 engine_;
};

}  // namespace refit::testing
