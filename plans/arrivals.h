#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "plans/plan.h"

namespace refit {

/// What one rank receives straight into its gen shards. Internal to plans/.
struct Arrived {
  int32_t area = -1;  // of the rank's shards of the tensor
  int32_t box = -1;   // of Program::boxes
  int32_t step = -1;  // index in Program::steps
};

class Arrivals {
 public:
  /// The program is well-formed.
  Arrivals(const Plan& plan, int32_t rank);

  /// Of a tensor, by area; within one in the order of the program.
  std::span<const Arrived> of(int32_t tensor) const {
    const auto t = static_cast<size_t>(tensor);
    return std::span(arrivals_).subspan(first_[t], first_[t + 1] - first_[t]);
  }

 private:
  std::vector<size_t> first_;  // by tensor, one more at the end
  std::vector<Arrived> arrivals_;
};

}  // namespace refit
