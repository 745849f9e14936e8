#include "sim/search/load.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "sim/search/parts.h"

namespace refit {

LinkLoad::LinkLoad(const Problem& problem)
    : problem_(problem),
      rate_(link_rates(problem.fabric, problem.cost)),
      load_(problem.fabric.links.size(), 0),
      domain_(problem.gpu_of_rank.size(), -1),
      sent_(problem.gpu_of_rank.size(), 0),
      received_(problem.gpu_of_rank.size(), 0) {
  for (size_t rank = 0; rank < domain_.size(); ++rank) {
    if (problem.gpu_of_rank[rank] >= 0)
      domain_[rank] = domain_of(problem, static_cast<int32_t>(rank));
  }
}

const std::vector<int32_t>& LinkLoad::path(int32_t from_rank, int32_t to_rank) {
  const int64_t key = int64_t{from_rank} * std::ssize(domain_) + to_rank;
  const auto [it, added] = path_.try_emplace(key);
  if (added) {
    it->second = route(problem_.fabric, problem_.gpu_of_rank[static_cast<size_t>(from_rank)],
                       problem_.gpu_of_rank[static_cast<size_t>(to_rank)]);
  }
  return it->second;
}

double LinkLoad::peak_with(int32_t from_rank, int32_t to_rank, int64_t bytes) {
  double peak = 0;
  for (const int32_t link : path(from_rank, to_rank)) {
    const auto l = static_cast<size_t>(link);
    peak = std::max(peak, load_[l] + static_cast<double>(bytes) / rate_[l]);
  }
  return peak;
}

void LinkLoad::add(int32_t from_rank, int32_t to_rank, int64_t bytes) {
  for (const int32_t link : path(from_rank, to_rank)) {
    const auto l = static_cast<size_t>(link);
    load_[l] += static_cast<double>(bytes) / rate_[l];
  }
  sent_[static_cast<size_t>(from_rank)] += bytes;
  received_[static_cast<size_t>(to_rank)] += bytes;
}

int32_t LinkLoad::best_holder(const std::vector<int32_t>& holders, int32_t to, int64_t bytes) {
  int32_t best = -1;
  double best_peak = std::numeric_limits<double>::infinity();
  for (const int32_t holder : holders) {
    const double peak = peak_with(holder, to, bytes);
    const bool better =
        peak < best_peak || (peak == best_peak &&
                             sent_[static_cast<size_t>(holder)] < sent_[static_cast<size_t>(best)]);
    if (better) {
      best = holder;
      best_peak = peak;
    }
  }
  REFIT_CHECK(best >= 0);
  return best;
}

}  // namespace refit
