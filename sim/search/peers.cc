#include "sim/search/peers.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "sim/search/parts.h"

namespace refit {
namespace {

bool holds(const Problem& problem, const EntryGuide::Class& of_class, int32_t domain) {
  return std::ranges::any_of(of_class.holders,
                             [&](int32_t rank) { return domain_of(problem, rank) == domain; });
}

using RankPairs = std::set<std::pair<int32_t, int32_t>>;

int32_t most_peers(const RankPairs& pairs) {
  std::map<int32_t, std::set<int32_t>> peers;
  size_t most = 0;
  for (const auto& [from, to] : pairs) {
    peers[from].insert(to);
    peers[to].insert(from);
    most = std::max({most, peers[from].size(), peers[to].size()});
  }
  return static_cast<int32_t>(most);
}

}  // namespace

int32_t count_peers(const Problem& problem, const Routing& routing) {
  RankPairs pairs;
  for (const Hop& hop : routing.hops)
    if (domain_of(problem, hop.from) != domain_of(problem, hop.to)) pairs.emplace(hop.from, hop.to);
  return most_peers(pairs);
}

void require_peers(const SearchOptions& options, int32_t least) {
  if (options.max_peers == 0 || least <= options.max_peers) return;
  throw Error(fmt::format("--max-peers: found {}, expected at least {} for strategy {}",
                          options.max_peers, least, options.strategy));
}

PeerLinks::PeerLinks(const Problem& problem, const std::vector<Class>& classes, int32_t homes)
    : problem_(problem),
      lane_(problem.gpu_of_rank.size(), -1),
      ranks_of_(problem.fabric.domains.size()),
      rank_at_(problem.fabric.domains.size()) {
  std::vector<int32_t> rank_of(problem.fabric.gpus.size(), -1);
  for (int32_t rank = 0; rank < std::ssize(problem.gpu_of_rank); ++rank) {
    const int32_t gpu = problem.gpu_of_rank[static_cast<size_t>(rank)];
    if (gpu >= 0) rank_of[static_cast<size_t>(gpu)] = rank;
  }
  for (size_t gpu = 0; gpu < rank_of.size(); ++gpu) {
    const auto domain = static_cast<size_t>(problem.fabric.gpus[gpu].domain);
    std::vector<int32_t>& lanes = rank_at_[domain];
    if (rank_of[gpu] >= 0) {
      lane_[static_cast<size_t>(rank_of[gpu])] = static_cast<int32_t>(lanes.size());
      ranks_of_[domain].push_back(rank_of[gpu]);
    }
    lanes.push_back(rank_of[gpu]);
  }

  // By ring: domains of holders, with their numbers among them. Numbers spread the homes.
  std::map<std::vector<int32_t>, std::map<int32_t, int32_t>> sources;
  for (const Class& of_class : classes) {
    std::vector<int32_t> ring;
    for (const auto& [domain, needers] : of_class.needers)
      if (!holds(problem, of_class, domain)) ring.push_back(domain);
    std::map<int32_t, int32_t>& numbers = sources[ring];
    const int32_t length = static_cast<int32_t>(ring.size());
    const int32_t of_each = std::min(homes, length);
    std::vector<int32_t> wave(ring.size(), -1);  // by place in the ring
    for (const int32_t holder : of_class.holders) {
      const int32_t domain = domain_of(problem, holder);
      const int32_t number =
          numbers.try_emplace(domain, static_cast<int32_t>(numbers.size())).first->second;
      for (int32_t home = 0; home < of_each; ++home) {
        const auto place = static_cast<size_t>((number + home * length / of_each) % length);
        wave[place] = 0;
        joined_.emplace(domain, ring[place]);
      }
    }
    for (size_t place = 0; place < ring.size(); ++place) {
      const size_t next = (place + 1) % ring.size();
      if (next != place) joined_.emplace(ring[place], ring[next]);
    }
    // Twice around: from the home before the first place, too.
    for (size_t i = 0; i < 2 * ring.size(); ++i) {
      const int32_t before = wave[(i + ring.size() - 1) % ring.size()];
      int32_t& here = wave[i % ring.size()];
      if (here != 0 && before >= 0) here = before + 1;
    }
    std::map<int32_t, int32_t>& waves = waves_.emplace_back();
    for (size_t place = 0; place < ring.size(); ++place) waves[ring[place]] = wave[place];
  }
}

int32_t PeerLinks::wave(int32_t of_class, int32_t domain) const {
  const std::map<int32_t, int32_t>& waves = waves_[static_cast<size_t>(of_class)];
  const auto found = waves.find(domain);
  return found == waves.end() ? 0 : found->second;
}

/// Of another domain, the rank on the lane of `rank`; where that has none, the next by number.
bool PeerLinks::is_partner(int32_t rank, int32_t other) const {
  const auto domain = static_cast<size_t>(domain_of(problem_, other));
  const auto lane = static_cast<size_t>(lane_[static_cast<size_t>(rank)]);
  if (lane < rank_at_[domain].size() && rank_at_[domain][lane] >= 0)
    return rank_at_[domain][lane] == other;
  return ranks_of_[domain][lane % ranks_of_[domain].size()] == other;
}

bool PeerLinks::allows(int32_t from_rank, int32_t to_rank) const {
  const int32_t from = domain_of(problem_, from_rank), to = domain_of(problem_, to_rank);
  return joined_.contains({from, to}) &&
         (is_partner(from_rank, to_rank) || is_partner(to_rank, from_rank));
}

int32_t PeerLinks::most_peers() const {
  RankPairs pairs;
  for (const auto& [from, to] : joined_) {
    for (const int32_t rank : ranks_of_[static_cast<size_t>(from)])
      for (const int32_t other : ranks_of_[static_cast<size_t>(to)])
        if (allows(rank, other)) pairs.emplace(rank, other);
  }
  return refit::most_peers(pairs);
}

int32_t PeerLinks::most_homes(const std::vector<Class>& classes) {
  int32_t most = 1;
  for (const Class& of_class : classes)
    most = std::max(most, static_cast<int32_t>(of_class.needers.size()));
  return most;
}

}  // namespace refit
