#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/fabric/fabric.h"
#include "sim/layout/demand.h"

namespace refit {

/// A cut: a set X of GPUs that an unavoidable number of bytes has to enter or to leave.
struct Cut {
  enum class Kind { kGpu, kNode, kDomain, kRail, kSide };
  Kind kind = Kind::kGpu;
  int32_t index = 0;  // GPU, node, domain, rail; kSide: 0 train, 1 gen
  bool into = true;
  int64_t bytes = 0;    // each element counted once
  double capacity = 0;  // maximum flow, bytes/s
  double seconds() const { return capacity > 0 ? static_cast<double>(bytes) / capacity : 0; }
};

struct LowerBound {
  double seconds = 0;
  Cut cut;             // the one that binds
  std::string reason;  // "ingress of node n4: 61.1 GB at 400 GB/s"
};

/// Lower bound on the time of any schedule, whatever its routes (DESIGN.md section 6). Let B be
/// what has to cross a cut:
///
///   into X    bytes that some rank in X needs and no rank in X holds,
///   out of X  bytes that some rank outside X needs and only ranks in X hold,
///
/// each element counted once, however many ranks need it, for GPUs may copy and relay. All of B
/// crosses at no more than the maximum flow C between X and the rest, so that no schedule takes
/// less than B / C. X runs over every GPU, node, NVLink domain, rail (the GPUs whose first NIC is
/// on it) and side (the GPUs of its ranks).
///
/// A flow is computed only for the cuts that the ports of X alone make the tightest; any subset of
/// the cuts is a valid bound. Of equal cuts the first kind, then the lowest index, then `into` is
/// named. `gpu_of_rank` by rank; `rates` by link, bytes/s. Seconds 0 when nothing has to move;
/// fails when bytes have to cross a cut that no link crosses. O(sum of rank sets + classes x groups
/// they touch), plus O(links) for each flow.
LowerBound cut_bound(const Demand& demand, const Layout& train, const Layout& gen,
                     const Fabric& fabric, const std::vector<int32_t>& gpu_of_rank,
                     const std::vector<double>& rates);

/// "node n4", "GPU n0.gpu3", "NVLink domain d1", "rail 2", "the gen ranks".
std::string cut_name(const Cut& cut, const Fabric& fabric);

}  // namespace refit
