#include "sim/search/load.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "sim/search/parts.h"

namespace refit {

LinkLoad::LinkLoad(const Problem& problem)
    : problem_(problem),
      rate_(link_rates(problem.fabric, problem.cost)),
      load_(problem.fabric.links.size(), 0),
      domain_(problem.gpu_of_rank.size(), -1),
      ranks_of_(problem.fabric.domains.size()),
      sent_(problem.gpu_of_rank.size(), 0),
      received_(problem.gpu_of_rank.size(), 0) {
  for (int32_t rank = 0; rank < std::ssize(domain_); ++rank) {
    const auto r = static_cast<size_t>(rank);
    if (problem.gpu_of_rank[r] < 0) continue;
    domain_[r] = domain_of(problem, rank);
    ranks_of_[static_cast<size_t>(domain_[r])].push_back(rank);
  }
}

LinkLoad::Path& LinkLoad::path(int32_t from_rank, int32_t to_rank) {
  const int64_t key = int64_t{from_rank} * std::ssize(domain_) + to_rank;
  const auto [it, added] = path_.try_emplace(key);
  Path& path = it->second;
  if (!added) return path;
  const int32_t from = problem_.gpu_of_rank[static_cast<size_t>(from_rank)];
  const int32_t to = problem_.gpu_of_rank[static_cast<size_t>(to_rank)];
  const int32_t ways = count_ways(problem_.fabric, from, to);
  for (int32_t way = 0; way < ways; ++way) {
    const std::optional<std::vector<int32_t>> links = find_route(problem_.fabric, from, to, way);
    if (!links) return path;
    for (const int32_t link : *links) {
      const double seconds = 1 / rate_[static_cast<size_t>(link)] / ways;
      const auto same = std::ranges::find(path.parts, link, &Part::link);
      if (same == path.parts.end()) {
        path.parts.push_back({link, seconds});
      } else {
        same->seconds += seconds;
      }
    }
  }
  path.joined = true;
  return path;
}

double LinkLoad::peak_with(int32_t from_rank, int32_t to_rank, int64_t bytes) {
  const Path& way = path(from_rank, to_rank);
  if (!way.joined) return std::numeric_limits<double>::infinity();
  double peak = 0;
  for (const Part& part : way.parts)
    peak = std::max(
        peak, load_[static_cast<size_t>(part.link)] + static_cast<double>(bytes) * part.seconds);
  return peak;
}

double LinkLoad::peak() const { return *std::ranges::max_element(load_); }

void LinkLoad::add(int32_t from_rank, int32_t to_rank, int64_t bytes) {
  Path& way = path(from_rank, to_rank);
  for (const Part& part : way.parts)
    load_[static_cast<size_t>(part.link)] += static_cast<double>(bytes) * part.seconds;
  way.bytes += bytes;
  sent_[static_cast<size_t>(from_rank)] += bytes;
  received_[static_cast<size_t>(to_rank)] += bytes;
}

int32_t LinkLoad::rail(int32_t rank) const {
  const Fabric& fabric = problem_.fabric;
  const Gpu& gpu =
      fabric.gpus[static_cast<size_t>(problem_.gpu_of_rank[static_cast<size_t>(rank)])];
  return gpu.nics.empty() ? -1 : fabric.nics[static_cast<size_t>(gpu.nics[0])].rail;
}

bool LinkLoad::reached(const std::vector<int32_t>& holders, int32_t to) {
  return std::ranges::any_of(holders, [&](int32_t holder) { return joined(holder, to); });
}

int32_t LinkLoad::best_holder(const std::vector<int32_t>& holders, int32_t to, int64_t bytes,
                              double limit) {
  int32_t best = -1;
  std::tuple<double, int64_t, int64_t> best_key;
  for (const int32_t holder : holders) {
    const double peak = peak_with(holder, to, bytes);
    const bool within = peak <= limit;
    const std::tuple key(within ? 0 : peak, within ? -sent(holder, to) : 0,
                         sent_[static_cast<size_t>(holder)]);
    if (best >= 0 && key >= best_key) continue;
    best = holder;
    best_key = key;
  }
  REFIT_CHECK(best >= 0);
  if (!joined(best, to))  // says why
    route(problem_.fabric, problem_.gpu_of_rank[static_cast<size_t>(best)],
          problem_.gpu_of_rank[static_cast<size_t>(to)]);
  return best;
}

}  // namespace refit
