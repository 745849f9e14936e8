#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/fabric/fabric.h"
#include "sim/layout/demand.h"

namespace refit {

/// A cut: the set X of ranks' GPUs that an unavoidable number of bytes must enter or leave.
struct Cut {
  enum class Kind { kGpu, kNode, kDomain, kSide };
  Kind kind = Kind::kGpu;
  int32_t index = 0;   // GPU, node, domain; kSide: 0 train, 1 gen
  bool into = true;
  int64_t bytes = 0;   // each element counted once
  double capacity = 0; // maximum flow, bytes/s
  double seconds() const { return capacity > 0 ? static_cast<double>(bytes) / capacity : 0; }
};

struct LowerBound {
  double seconds = 0;
  Cut cut;             // the one that binds
  std::string reason;  // "ingress of node n4: 61.1 GB at 400 GB/s"
};

/// Lower bound on the time of any schedule, whatever its routes (DESIGN.md section 6). Into X: elements needed in X that nobody in X
/// holds; out of X: elements needed outside X whose holders are all in X. X over every GPU, node, NVLink domain and side.
/// `gpu_of_rank` by rank; `rates` by link. O(classes x ranks) plus a maximum flow for each cut that may bind.
LowerBound cut_bound(const Demand& demand, const Layout& train, const Layout& gen, const Fabric& fabric,
                     const std::vector<int32_t>& gpu_of_rank, const std::vector<double>& rates);

}  // namespace refit
