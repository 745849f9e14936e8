#include "sim/search/fan_out.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "sim/search/colouring.h"

namespace refit {
namespace {

constexpr int64_t kRipe = 4;     // a pair waits with less than this part of a message
constexpr double kFilled = 0.5;  // of what a step could carry, if all had as much as the busiest
constexpr int64_t kLong = 4;     // full steps of what goes to many may wait for others
constexpr int64_t kTaper = 8;    // a step is at most this part of what is yet to come,
constexpr int64_t kLeast = 2;    // and at least this part of a full one

/// In one domain, of what goes to about as many of its ranks.
class FanOutPacker {
 public:
  FanOutPacker(const Problem& problem, const Routing& routing, const FanOutShape& shape, bool wide)
      : problem_(problem), routing_(routing), shape_(shape), is_wide_(wide) {}

  /// Counts what will come.
  void announce(const Brought& brought) {
    Pair& pair = pair_of(brought);
    pair.to_come += bytes(brought);
    to_come_ += bytes(brought);
    ports_.insert(hop(brought).to);
  }

  void add(const Brought& brought) {
    Pair& pair = pair_of(brought);
    pair.parts.push_back(brought);
    pair.bytes += bytes(brought);
    const int32_t parent = hop(brought).parent;
    pair.staged = pair.staged || (parent >= 0 && routing_.hops[static_cast<size_t>(parent)].staged);
    pair.to_come -= bytes(brought);
    to_come_ -= bytes(brought);
  }

  /// Appends the steps that are due after a round.
  void flush(int32_t round, std::vector<FanOutStep>& steps) {
    const auto ports = static_cast<int64_t>(ports_.size());
    const double peers = std::clamp<double>(shape_.peers, 1, kMaxPeersPerStep);
    const auto full = static_cast<int64_t>(peers * static_cast<double>(shape_.message));
    const int64_t quota =
        std::clamp(to_come_ / ports / kTaper, std::max<int64_t>(full / kLeast, 1), full);
    const int64_t least = std::min(shape_.message, quota) / kRipe;
    const bool last = to_come_ == 0;
    std::vector<Entry*> ripe;
    bool staged = false;
    for (Entry& entry : pairs_) {
      const Pair& pair = entry.second;
      const bool ready = pair.staged || pair.bytes >= least || pair.to_come == 0;
      if (pair.bytes > 0 && ready) ripe.push_back(&entry);
      staged = staged || pair.staged;
    }
    if (last || (busiest(ripe) >= quota && (staged || is_filled(ripe, quota * ports))))
      send(round, ripe, steps);
  }

 private:
  struct Pair {
    std::vector<Brought> parts;
    int64_t bytes = 0;    // that wait
    int64_t to_come = 0;  // bytes
    bool staged = false;  // in slots, which are to be free again soon
  };
  using Entry = std::pair<const std::pair<int32_t, int32_t>, Pair>;

  const Hop& hop(const Brought& brought) const {
    return routing_.hops[static_cast<size_t>(brought.part.hop)];
  }
  int64_t bytes(const Brought& brought) const {
    return box_bytes(problem_, hop(brought).tensor, brought.part.box);
  }
  Pair& pair_of(const Brought& brought) { return pairs_[{hop(brought).from, hop(brought).to}]; }

  /// Bytes at the port with the most.
  static int64_t busiest(const std::vector<Entry*>& pairs) {
    std::map<int32_t, int64_t> out, in;
    int64_t most = 0;
    for (const Entry* entry : pairs) {
      most = std::max({most, out[entry->first.first] += entry->second.bytes,
                       in[entry->first.second] += entry->second.bytes});
    }
    return most;
  }

  /// Would most ranks take part, or have they waited long?
  bool is_filled(const std::vector<Entry*>& pairs, int64_t full) const {
    int64_t sum = 0;
    for (const Entry* entry : pairs) sum += entry->second.bytes;
    return sum >= (is_wide_ ? kLong : 1) * full ||
           static_cast<double>(sum) >=
               kFilled * static_cast<double>(busiest(pairs)) * static_cast<double>(ports_.size());
  }

  static void send(int32_t round, const std::vector<Entry*>& pairs,
                   std::vector<FanOutStep>& steps) {
    std::vector<PortPair> edges;
    for (const Entry* entry : pairs) edges.push_back({entry->first.first, entry->first.second});
    const std::vector<int32_t> colours = colour_edges(edges);
    const size_t first = steps.size();
    for (size_t e = 0; e < pairs.size(); ++e) {
      const size_t step = first + static_cast<size_t>(colours[e] / kMaxPeersPerStep);
      if (steps.size() <= step) steps.resize(step + 1, {round, {}});
      Pair& pair = pairs[e]->second;
      std::ranges::move(pair.parts, std::back_inserter(steps[step].parts));
      pair.parts.clear();
      pair.bytes = 0;
      pair.staged = false;
    }
  }

  const Problem& problem_;
  const Routing& routing_;
  const FanOutShape shape_;
  const bool is_wide_;  // parts go to more ranks than a step has peers
  std::map<std::pair<int32_t, int32_t>, Pair> pairs_;
  std::set<int32_t> ports_;  // that receive
  int64_t to_come_ = 0;
};

}  // namespace

std::vector<FanOutStep> pack_fan_out(const Problem& problem, const Routing& routing,
                                     std::span<const Brought> brought, const FanOutShape& shape) {
  std::map<std::pair<int32_t, int32_t>, FanOutPacker> packers;  // by domain and log2 of ranks
  const auto packer = [&](const Brought& part) -> FanOutPacker& {
    const int32_t domain = domain_of(problem, routing.hops[static_cast<size_t>(part.part.hop)].to);
    const auto width = static_cast<int32_t>(std::bit_width(static_cast<uint32_t>(part.ranks)));
    const bool wide = part.ranks > kMaxPeersPerStep;
    return packers.try_emplace({domain, width}, problem, routing, shape, wide).first->second;
  };
  for (const Brought& part : brought) packer(part).announce(part);
  std::vector<FanOutStep> steps;
  for (size_t i = 0; i < brought.size(); ++i) {
    packer(brought[i]).add(brought[i]);
    if (i + 1 < brought.size() && brought[i + 1].round == brought[i].round) continue;
    for (auto& [key, fan_out] : packers) fan_out.flush(brought[i].round, steps);
  }
  return steps;
}

}  // namespace refit
