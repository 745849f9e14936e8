#include "sim/search/groups.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"

namespace refit {
namespace {

constexpr int32_t kFanOut = 4;

/// Boxes that neither overlap nor repeat: sorted along the first dimension, so that in layouts made
/// of meshes few pairs are compared.
bool are_disjoint(const Groups& groups) {
  for (auto a = groups.begin(); a != groups.end(); ++a) {
    for (auto b = std::next(a); b != groups.end(); ++b) {
      if (a->first.dims() == 0 || b->first.lo[0] >= a->first.hi[0]) break;
      if (!intersect(a->first, b->first).empty()) return false;
    }
  }
  return true;
}

}  // namespace

Groups make_groups(const Problem& problem, Side side, int32_t tensor, const std::string& place) {
  const Layout& layout = side == Side::kTrain ? problem.train : problem.gen;
  const auto t = static_cast<size_t>(tensor);
  Groups groups;
  for (const auto& [rank, shards] : layout.maps[static_cast<size_t>(layout.tensor_map[t])].shards) {
    for (const Shard& shard : shards) {  // a box that a rank has twice comes once
      std::vector<int32_t>& members = groups[shard.box];
      if (members.empty() || members.back() != rank) members.push_back(rank);
    }
  }
  if (!are_disjoint(groups)) {
    throw Error(
        fmt::format("{}: {} on the {} side: found boxes that overlap (redundant experts), "
                    "expected equal or disjoint ones",
                    place, problem.model.tensors[t].name, side == Side::kTrain ? "train" : "gen"),
        ErrorKind::kWork);
  }
  return groups;
}

bool has_rank(const std::vector<int32_t>& members, int32_t rank) {
  return std::binary_search(members.begin(), members.end(), rank);
}

int64_t count_runs(const Box& part, const Box& a, const Box& b) {
  int64_t run = 1;
  for (int d = part.dims() - 1; d >= 0; --d) {
    run *= part.extent(d);
    if (part.extent(d) != a.extent(d) || part.extent(d) != b.extent(d)) break;
  }
  return part.volume() / run;
}

TrainStages::TrainStages(const Problem& problem) {
  std::map<std::vector<int32_t>, int32_t> known;
  for (const int32_t map : problem.train.tensor_map) {
    std::vector<int32_t> ranks;
    for (const auto& [rank, shards] : problem.train.maps[static_cast<size_t>(map)].shards) {
      ranks.push_back(rank);
    }
    const auto [it, added] = known.try_emplace(ranks, count());
    if (added) ranks_.push_back(ranks);
    stage_.push_back(it->second);
  }
}

std::vector<Leg> make_tree(const Problem& problem, int32_t root,
                           const std::vector<int32_t>& members, int32_t turn) {
  std::map<int32_t, std::vector<int32_t>> domains;
  for (const int32_t rank : members) domains[domain_of(problem, rank)].push_back(rank);
  std::vector<Leg> legs;
  const auto fan_out = [&](const std::vector<int32_t>& order,
                           const std::vector<int32_t>& depth_at) {
    std::vector<int32_t> depth = depth_at;  // by position; of position 0: when it has the data
    for (size_t p = 1; p < order.size(); ++p) {
      const size_t parent = (p - 1) / kFanOut;
      legs.push_back({order[parent], order[p], depth[parent]});
      depth.push_back(depth[parent] + 1);
    }
  };
  const int32_t own = domain_of(problem, root);
  if (const auto it = domains.find(own); it != domains.end()) {
    std::vector<int32_t> order = {root};
    order.insert(order.end(), it->second.begin(), it->second.end());
    fan_out(order, {0});
    domains.erase(it);
  }
  int32_t from = root, depth = 0;
  for (const auto& [domain, ranks] : domains) {
    std::vector<int32_t> order = ranks;
    const auto entry = static_cast<ptrdiff_t>(static_cast<size_t>(turn) % order.size());
    std::rotate(order.begin(), order.begin() + entry, order.end());
    legs.push_back({from, order[0], depth});
    from = order[0];
    fan_out(order, {++depth});
  }
  std::stable_sort(legs.begin(), legs.end(),
                   [](const Leg& a, const Leg& b) { return a.depth < b.depth; });
  return legs;
}

int64_t count_parameters(const Tensor& tensor) {
  const bool experts = tensor.role == Role::kExpertColumn || tensor.role == Role::kExpertRow;
  return experts ? tensor.shape[0] : 1;
}

}  // namespace refit
