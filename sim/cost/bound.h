#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/fabric/fabric.h"
#include "sim/flow/multicast.h"
#include "sim/layout/demand.h"

namespace refit {

/// A cut: a set X of GPUs that an unavoidable number of bytes has to enter or to leave.
struct Cut {
  enum class Kind { kGpu, kNode, kDomain, kRail, kSwitch, kSide };
  Kind kind = Kind::kGpu;
  int32_t index = 0;  // GPU, node, domain, rail, switch (Fabric::leaves); kSide: 0 train, 1 gen
  bool into = true;
  int64_t bytes = 0;    // each element counted once
  double capacity = 0;  // maximum flow, bytes/s
  double seconds() const { return capacity > 0 ? static_cast<double>(bytes) / capacity : 0; }
};

/// A link's price, in seconds a byte. Prices are scaled so that rate times price adds up to 1 over
/// all links; a link's part of that is its share: what 1 % more of its rate takes off the bound, in
/// percent.
struct LinkPrice {
  int32_t link = -1;
  double price = 0;
  bool operator==(const LinkPrice&) const = default;
};

/// What a group of links has of the prices: "NICs into gen ranks", 0.62, 64 links.
struct PriceGroup {
  std::string name;
  double share = 0;
  int64_t links = 0;
};

struct LowerBound {
  double seconds = 0;
  bool from_prices = false;         // else from the cut
  Cut cut;                          // the one that binds most
  std::string reason;               // "ingress of node n4: 61.1 GB at 400 GB/s"
  std::vector<LinkPrice> prices;    // of the links of the cut, or those that give the bound
  std::vector<PriceGroup> binding;  // what they add up to, by lower_bound
  double fluid_s = 0;  // what a fractional routing needs, without order and start-ups, by the same;
                       // no bound can be above it
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
/// on it), switch (the GPUs whose first NIC is on it or on a switch below it: leaves and pods; left
/// out where switches are rails) and side (the GPUs of its ranks).
///
/// A flow is computed only for the cuts that the ports of X alone make the tightest; any subset of
/// the cuts is a valid bound. Of equal cuts the first kind, then the lowest index, then `into` is
/// named. `gpu_of_rank` by rank; `rates` by link, bytes/s. Seconds 0 when nothing has to move;
/// fails when bytes have to cross a cut that no link crosses. O(sum of rank sets + classes x groups
/// they touch), plus O(links) for each flow.
LowerBound cut_bound(const Demand& demand, const Layout& train, const Layout& gen,
                     const Fabric& fabric, const std::vector<int32_t>& gpu_of_rank,
                     const std::vector<double>& rates);

/// The classes of a demand as sim/flow takes them.
std::vector<Multicast> make_multicasts(const Demand& demand,
                                       const std::vector<int32_t>& gpu_of_rank);

/// The larger of the cut bound and the price bound (sim/flow/multicast.h), which sees several
/// resources bind at once. Prices are searched for until a routing shows that no bound is 0.1 %
/// better, or until the work gets too much. Prices are rounded to what is printed, so that those
/// that are saved give the bound again.
LowerBound lower_bound(const Demand& demand, const Layout& train, const Layout& gen,
                       const Fabric& fabric, const std::vector<int32_t>& gpu_of_rank,
                       const std::vector<double>& rates);

/// The groups of what binds, largest share first; shares below 0.1 % are left out. A GPU is of
/// train or gen ranks by `sides`, by GPU: kTrainSide and kGenSide added up.
inline constexpr uint8_t kTrainSide = 1, kGenSide = 2;
std::vector<PriceGroup> group_prices(const std::vector<LinkPrice>& prices, const Fabric& fabric,
                                     const std::vector<double>& rates,
                                     const std::vector<uint8_t>& sides);

inline constexpr const char* kBoundInput = "bound";  // of Plan::inputs

/// The text of a bound as plans keep it, and back; links are named. What the text has in place of
/// the cut is its reason.
std::string print_bound(const LowerBound& bound, const Fabric& fabric);
LowerBound parse_bound(const std::string& text, const std::string& name, const Fabric& fabric);

/// "node n4", "GPU n0.gpu3", "NVLink domain d1", "rail 2", "switch leaf-1", "the gen ranks".
std::string cut_name(const Cut& cut, const Fabric& fabric);

}  // namespace refit
