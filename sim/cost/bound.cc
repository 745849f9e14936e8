#include "sim/cost/bound.h"

#include <fmt/core.h>

#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "base/units.h"

namespace refit {
namespace {

// Flows computed for cuts of GPUs, nodes and domains, all together. Ports alone are exact for these
// unless senders or the spine limit them further, so that the tightest cut is nearly always the
// first.
constexpr size_t kMostFlows = 64;
constexpr size_t kMostSwitches = 16;  // and for those of switches

/// GPUs in disjoint groups, each of which is an X; with `only` >= 0 just that one. GPUs of group -1
/// are in none.
struct Partition {
  Cut::Kind kind = Cut::Kind::kGpu;
  std::vector<int32_t> group_of_gpu;
  int32_t only = -1;
};

const Nic* first_nic(const Fabric& fabric, size_t gpu) {
  const std::vector<int32_t>& nics = fabric.gpus[gpu].nics;
  return nics.empty() ? nullptr : &fabric.nics[static_cast<size_t>(nics[0])];
}

/// The groups of the switches that the first NICs plug into; then those of their parents, and so
/// on: leaves, pods.
std::vector<std::vector<int32_t>> switch_levels(const Fabric& fabric) {
  std::vector<std::vector<int32_t>> levels;
  std::vector<int32_t> at(fabric.gpus.size(), -1);
  bool rails_only = true;  // every leaf is a rail
  for (size_t gpu = 0; gpu < at.size(); ++gpu)
    if (const Nic* nic = first_nic(fabric, gpu)) {
      const Link& out = fabric.links[static_cast<size_t>(nic->out)];
      at[gpu] = fabric.vertices[static_cast<size_t>(out.to)].index;
      rails_only = rails_only && at[gpu] == nic->rail;
    }
  if (rails_only) return levels;
  while (std::ranges::any_of(at, [](int32_t item) { return item >= 0; })) {
    levels.push_back(at);
    for (int32_t& item : at)
      if (item >= 0) item = fabric.leaves[static_cast<size_t>(item)].parent;
  }
  return levels;
}

std::vector<Partition> make_partitions(const Layout& train, const Layout& gen, const Fabric& fabric,
                                       const std::vector<int32_t>& gpu_of_rank) {
  std::vector<Partition> partitions;
  const auto add = [&](Cut::Kind kind, int32_t only, const auto& group_of) {
    Partition& partition = partitions.emplace_back();
    partition.kind = kind;
    partition.only = only;
    for (size_t gpu = 0; gpu < fabric.gpus.size(); ++gpu)
      partition.group_of_gpu.push_back(group_of(gpu));
  };
  add(Cut::Kind::kGpu, -1, [](size_t gpu) { return static_cast<int32_t>(gpu); });
  add(Cut::Kind::kNode, -1, [&](size_t gpu) { return fabric.gpus[gpu].node; });
  add(Cut::Kind::kDomain, -1, [&](size_t gpu) { return fabric.gpus[gpu].domain; });
  // A GPU without a NIC of its own is on a rail of its own, past those that there are.
  add(Cut::Kind::kRail, -1, [&](size_t gpu) {
    const Nic* nic = first_nic(fabric, gpu);
    return nic == nullptr ? fabric.rails : nic->rail;
  });
  for (const std::vector<int32_t>& level : switch_levels(fabric))
    add(Cut::Kind::kSwitch, -1, [&](size_t gpu) { return level[gpu]; });
  for (int32_t side = 0; side < 2; ++side) {
    std::vector<char> on_side(fabric.gpus.size(), 0);
    for (const int32_t rank : (side == 0 ? train : gen).ranks)
      on_side[static_cast<size_t>(gpu_of_rank[static_cast<size_t>(rank)])] = 1;
    add(Cut::Kind::kSide, side, [&](size_t gpu) { return on_side[gpu] ? side : 1 - side; });
  }
  return partitions;
}

/// Bytes that have to enter and to leave each group.
struct Crossing {
  std::vector<int64_t> into, out;
};

Crossing count_crossing(const Demand& demand, const std::vector<int32_t>& group_of_rank,
                        size_t groups) {
  std::vector<std::vector<int32_t>> groups_of_set;
  groups_of_set.reserve(demand.rank_sets.size());
  for (const std::vector<int32_t>& ranks : demand.rank_sets) {
    std::vector<int32_t>& touched = groups_of_set.emplace_back();
    // Ranks in no group stand together: -1, which is never an X but keeps others from being all.
    for (const int32_t rank : ranks) touched.push_back(group_of_rank[static_cast<size_t>(rank)]);
    std::sort(touched.begin(), touched.end());
    touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
  }
  Crossing crossing = {std::vector<int64_t>(groups, 0), std::vector<int64_t>(groups, 0)};
  std::vector<int32_t> must_enter;
  for (const DemandClass& item : demand.classes) {
    const auto& holding = groups_of_set[static_cast<size_t>(item.holders)];
    const auto& needing = groups_of_set[static_cast<size_t>(item.needers)];
    must_enter.clear();
    std::set_difference(needing.begin(), needing.end(), holding.begin(), holding.end(),
                        std::back_inserter(must_enter));
    for (const int32_t group : must_enter)
      if (group >= 0) crossing.into[static_cast<size_t>(group)] += item.bytes;
    if (holding.size() == 1 && holding[0] >= 0 && !must_enter.empty())
      crossing.out[static_cast<size_t>(holding[0])] += item.bytes;
  }
  return crossing;
}

/// What the ports of X let in or out: no less than the maximum flow. `way` is the link that all
/// that goes over NICs has to pass, -1: there is none.
double port_capacity(const Fabric& fabric, const std::vector<int32_t>& inside, bool into,
                     const std::vector<double>& rates, int32_t way) {
  double capacity = 0, network = 0;
  std::vector<int32_t> domains, nics;
  for (const int32_t id : inside) domains.push_back(fabric.gpus[static_cast<size_t>(id)].domain);
  std::sort(domains.begin(), domains.end());
  for (const int32_t id : inside) {
    const Gpu& gpu = fabric.gpus[static_cast<size_t>(id)];
    nics.insert(nics.end(), gpu.nics.begin(), gpu.nics.end());
    const int32_t port = into ? gpu.nvlink_in : gpu.nvlink_out;
    const auto [first, last] = std::equal_range(domains.begin(), domains.end(), gpu.domain);
    const bool whole_domain =
        static_cast<size_t>(last - first) == fabric.domains[static_cast<size_t>(gpu.domain)].size();
    if (port >= 0 && !whole_domain) capacity += rates[static_cast<size_t>(port)];
  }
  std::sort(nics.begin(), nics.end());
  nics.erase(std::unique(nics.begin(), nics.end()), nics.end());
  for (const int32_t id : nics) {
    const Nic& nic = fabric.nics[static_cast<size_t>(id)];
    network += rates[static_cast<size_t>(into ? nic.in : nic.out)];
  }
  if (way >= 0) network = std::min(network, rates[static_cast<size_t>(way)]);
  return capacity + network;
}

/// Are all NICs of the GPUs below the switch?
bool only_below(const Fabric& fabric, const std::vector<int32_t>& gpus, size_t top) {
  const auto below = [&](int32_t nic) {
    const int32_t out = fabric.nics[static_cast<size_t>(nic)].out;
    const Link& link = fabric.links[static_cast<size_t>(out)];
    int32_t item = fabric.vertices[static_cast<size_t>(link.to)].index;
    while (item >= 0 && static_cast<size_t>(item) != top)
      item = fabric.leaves[static_cast<size_t>(item)].parent;
    return item >= 0;
  };
  return std::ranges::all_of(gpus, [&](int32_t gpu) {
    return std::ranges::all_of(fabric.gpus[static_cast<size_t>(gpu)].nics, below);
  });
}

/// A cut with its GPUs; the capacity is that of the ports until its flow is known.
struct Candidate {
  Cut cut;
  std::vector<int32_t> inside;
};

std::vector<Candidate> make_candidates(const Demand& demand, const Partition& partition,
                                       const Fabric& fabric,
                                       const std::vector<int32_t>& gpu_of_rank,
                                       const std::vector<double>& rates) {
  const auto& group_of_gpu = partition.group_of_gpu;
  const size_t groups = std::max<size_t>(
      2, static_cast<size_t>(*std::max_element(group_of_gpu.begin(), group_of_gpu.end()) + 1));
  std::vector<std::vector<int32_t>> members(groups);
  for (size_t gpu = 0; gpu < group_of_gpu.size(); ++gpu)
    if (group_of_gpu[gpu] >= 0)
      members[static_cast<size_t>(group_of_gpu[gpu])].push_back(static_cast<int32_t>(gpu));
  std::vector<int32_t> group_of_rank(gpu_of_rank.size(), -1);
  for (size_t rank = 0; rank < gpu_of_rank.size(); ++rank)
    if (gpu_of_rank[rank] >= 0)
      group_of_rank[rank] = group_of_gpu[static_cast<size_t>(gpu_of_rank[rank])];

  const Crossing crossing = count_crossing(demand, group_of_rank, groups);
  std::vector<Candidate> candidates;
  for (size_t group = 0; group < groups; ++group) {
    if (partition.only >= 0 && group != static_cast<size_t>(partition.only)) continue;
    for (const bool into : {true, false}) {
      const int64_t bytes = (into ? crossing.into : crossing.out)[group];
      if (bytes == 0) continue;
      int32_t way = -1;
      if (partition.kind == Cut::Kind::kSwitch && only_below(fabric, members[group], group))
        way = into ? fabric.leaves[group].down : fabric.leaves[group].up;
      Cut cut = {partition.kind, static_cast<int32_t>(group), into, bytes,
                 port_capacity(fabric, members[group], into, rates, way)};
      candidates.push_back({cut, members[group]});
    }
  }
  return candidates;
}

}  // namespace

std::string cut_name(const Cut& cut, const Fabric& fabric) {
  const size_t index = static_cast<size_t>(cut.index);
  switch (cut.kind) {
    case Cut::Kind::kGpu:
      return "GPU " + fabric.vertices[static_cast<size_t>(fabric.gpus[index].vertex)].name;
    case Cut::Kind::kNode:
      return "node " + fabric.nodes[index].name;
    case Cut::Kind::kDomain:
      return "NVLink domain " + fabric.domain_names[index];
    case Cut::Kind::kRail:
      return fmt::format("rail {}", cut.index);
    case Cut::Kind::kSwitch:
      return "switch " + fabric.vertices[static_cast<size_t>(fabric.leaves[index].vertex)].name;
    case Cut::Kind::kSide:
      return cut.index == 0 ? "the train ranks" : "the gen ranks";
  }
  check_failed("a kind of cut", __FILE__, __LINE__);
}

LowerBound cut_bound(const Demand& demand, const Layout& train, const Layout& gen,
                     const Fabric& fabric, const std::vector<int32_t>& gpu_of_rank,
                     const std::vector<double>& rates) {
  REFIT_CHECK(rates.size() == fabric.links.size());
  for (const int32_t gpu : gpu_of_rank) REFIT_CHECK(gpu < static_cast<int32_t>(fabric.gpus.size()));
  for (const std::vector<int32_t>& ranks : demand.rank_sets)
    for (const int32_t rank : ranks) REFIT_CHECK(gpu_of_rank.at(static_cast<size_t>(rank)) >= 0);

  std::vector<Candidate> candidates;
  for (const Partition& partition : make_partitions(train, gen, fabric, gpu_of_rank))
    for (Candidate& candidate : make_candidates(demand, partition, fabric, gpu_of_rank, rates))
      candidates.push_back(std::move(candidate));
  std::stable_sort(
      candidates.begin(), candidates.end(),
      [](const Candidate& a, const Candidate& b) { return a.cut.seconds() > b.cut.seconds(); });

  const auto order = [](const Cut& cut) { return std::tuple(cut.kind, cut.index, !cut.into); };
  LowerBound bound;
  std::vector<int32_t> links;
  size_t flows = 0, switches = 0;
  for (Candidate& candidate : candidates) {
    Cut& cut = candidate.cut;
    const bool large = cut.kind == Cut::Kind::kRail || cut.kind == Cut::Kind::kSide;
    if (cut.kind == Cut::Kind::kSwitch ? switches++ >= kMostSwitches
                                       : !large && flows++ >= kMostFlows)
      continue;
    FabricCut flow = minimum_cut(fabric, candidate.inside, cut.into, rates);
    cut.capacity = flow.rate;
    if (!(cut.capacity > 0))
      fail(fmt::format("fabric {}", fabric.name),
           fmt::format("no link leads {} {}, but {} have to", cut.into ? "into" : "out of",
                       cut_name(cut, fabric), print_bytes(static_cast<double>(cut.bytes))));
    if (cut.seconds() > bound.seconds ||
        (cut.seconds() == bound.seconds && order(cut) < order(bound.cut))) {
      bound.seconds = cut.seconds();
      bound.cut = cut;
      links = std::move(flow.links);
    }
  }
  if (bound.seconds == 0) {
    bound.reason = "nothing has to move";
    return bound;
  }
  double spine = 0, total = 0;
  for (const int32_t link : links) {
    const double rate = rates[static_cast<size_t>(link)];
    total += rate;
    if (fabric.links[static_cast<size_t>(link)].kind == LinkKind::kSpine) spine += rate;
  }
  for (const int32_t link : links) bound.prices.push_back({link, 1 / total});
  bound.reason =
      fmt::format("{} of {}: {} at {}{}", bound.cut.into ? "ingress" : "egress",
                  cut_name(bound.cut, fabric), print_bytes(static_cast<double>(bound.cut.bytes)),
                  print_rate(bound.cut.capacity), spine > total / 2 ? " over the spine" : "");
  return bound;
}

}  // namespace refit
