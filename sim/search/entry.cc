#include "sim/search/entry.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

namespace refit {
namespace {

class Search {
 public:
  Search(LinkLoad& load, std::vector<int32_t> needers, int64_t bytes, double track)
      : load_(load), needers_(std::move(needers)), bytes_(bytes), track_(track) {
    best_.peak = std::numeric_limits<double>::infinity();
  }

  const Entry& best() const { return best_; }
  bool good() const { return best_.peak <= track_; }
  bool needs(int32_t rank) const { return std::ranges::find(needers_, rank) != needers_.end(); }

  /// `peak`: of what is not over the network.
  void propose(Entry entry, double peak) {
    if (peak >= best_.peak && peak > track_) return;
    entry.peak = std::max(peak, load_.peak_with(entry.from, entry.to, bytes_));
    const bool within = entry.peak <= track_;
    if (!within && entry.peak >= best_.peak) return;
    const Rank rank(load_.rail(entry.from) != load_.rail(entry.to), entry.staged,
                    -load_.sent(entry.from, entry.to));
    if (within && good() && rank >= best_rank_) return;
    best_ = entry;
    best_rank_ = rank;
  }

  double to_needers(int32_t relay) const {
    double peak = 0;
    for (const int32_t needer : needers_) {
      if (needer != relay) peak = std::max(peak, load_.peak_with(relay, needer, bytes_));
    }
    return peak;
  }

 private:
  using Rank = std::tuple<bool, bool, int64_t>;  // of good ways, lowest first

  LinkLoad& load_;
  const std::vector<int32_t> needers_;
  const int64_t bytes_;
  const double track_;
  Entry best_;
  Rank best_rank_;
};

}  // namespace

Entry find_entry(LinkLoad& load, const std::vector<int32_t>& holders,
                 const std::vector<int32_t>& passers, const std::vector<int32_t>& needers,
                 int32_t domain, int64_t bytes, EntryLimits limits) {
  Search search(load, needers, bytes, limits.track);
  const std::vector<int32_t>& members = load.ranks_of(domain);
  std::vector<double> inside;
  for (const int32_t to : members) inside.push_back(search.to_needers(to));
  const auto allowed = [&](int32_t from, int32_t to) {
    return limits.links == nullptr || limits.links->allows(from, to);
  };
  std::vector<int32_t> sources = holders;
  sources.insert(sources.end(), passers.begin(), passers.end());
  for (const int32_t from : sources) {
    for (size_t m = 0; m < members.size(); ++m) {
      if (!allowed(from, members[m])) continue;
      search.propose({.from = from, .to = members[m], .staged = !search.needs(members[m])},
                     inside[m]);
    }
  }
  if (search.good() || (search.best().to >= 0 && !limits.feed)) return search.best();
  for (const int32_t holder : holders) {
    for (const int32_t from : load.ranks_of(load.domain(holder))) {
      if (std::ranges::find(holders, from) != holders.end()) continue;
      const double fed = load.peak_with(holder, from, bytes);
      for (size_t m = 0; m < members.size(); ++m) {
        const bool needed = search.needs(members[m]);
        if (!needed && load.rail(from) != load.rail(members[m])) continue;
        if (!allowed(from, members[m])) continue;
        search.propose({.from = from, .to = members[m], .staged = !needed, .feeder = holder},
                       std::max(fed, inside[m]));
      }
    }
  }
  return search.best();
}

Entry find_feeder(LinkLoad& load, const std::vector<int32_t>& holders, int32_t to, int64_t bytes,
                  double track) {
  Search search(load, {to}, bytes, track);
  for (const int32_t holder : holders) {
    for (const int32_t from : load.ranks_of(load.domain(holder))) {
      if (std::ranges::find(holders, from) == holders.end())
        search.propose({.from = from, .to = to, .feeder = holder},
                       load.peak_with(holder, from, bytes));
    }
  }
  return search.best();
}

}  // namespace refit
