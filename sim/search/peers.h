#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "sim/search/guide.h"
#include "sim/search/routing.h"
#include "sim/search/search.h"

namespace refit {

/// Ranks in other NVLink domains that the rank with the most of them exchanges messages with.
int32_t count_peers(const Problem& problem, const Routing& routing);

/// Refuses a plan with more peers than the bound; `least` is the least number that would work.
void require_peers(const SearchOptions& options, int32_t least);

/// Which ranks may exchange messages over the network where they are to have few peers. A rank
/// exchanges messages only with its own lane (its place in the domain) of other domains; what
/// another lane holds or needs crosses NVLink. Domains that need the same form a ring: it leaves
/// each domain of the holders for as many of them as `homes` says, and follows the ring from there.
class PeerLinks {
 public:
  using Class = EntryGuide::Class;

  PeerLinks(const Problem& problem, const std::vector<Class>& classes, int32_t homes);

  bool allows(int32_t from_rank, int32_t to_rank) const;

  /// Of the rank with the most: ranks that it may exchange messages with.
  int32_t most_peers() const;

  /// A class enters domains in order of their waves: 0 from the holders, a later one also from the
  /// domain before it.
  int32_t wave(int32_t of_class, int32_t domain) const;

  /// Homes that make a difference at most.
  static int32_t most_homes(const std::vector<Class>& classes);

 private:
  bool is_partner(int32_t rank, int32_t other) const;

  const Problem& problem_;
  std::vector<int32_t> lane_;                      // by rank
  std::vector<std::vector<int32_t>> ranks_of_;     // by domain
  std::vector<std::vector<int32_t>> rank_at_;      // by domain and lane; -1: no rank
  std::set<std::pair<int32_t, int32_t>> joined_;   // from domain to domain
  std::vector<std::map<int32_t, int32_t>> waves_;  // by class: of domains without a holder
};

}  // namespace refit
