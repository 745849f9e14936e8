#include "sim/search/fan_out.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "sim/search/colouring.h"

namespace refit {
namespace {

constexpr int64_t kRipe = 4;       // a pair waits with less than this part of a message
constexpr int64_t kSlack = 16;     // a step may carry this part less,
constexpr double kFilled = 0.8;    // and all ranks together this part of what they could
constexpr int64_t kGridParts = 2;  // of a message: what the first of two steps waits for
constexpr int64_t kTaper = 8;      // a step is at most this part of what is yet to come,
constexpr int64_t kLeast = 2;      // and at least this part of a full one

/// In one domain, of what goes to about as many of its ranks.
class FanOutPacker {
 public:
  FanOutPacker(const Problem& problem, const Routing& routing, const FanOutShape& shape,
               int64_t parts)
      : problem_(problem), routing_(routing), shape_(shape), parts_(parts) {}

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
    // Bytes of a rank in the largest step, and in one that is worth it.
    const auto most = static_cast<int64_t>(peers * static_cast<double>(shape_.message));
    const int64_t full = std::max<int64_t>(most / parts_, 1);
    const int64_t quota =
        std::clamp(to_come_ / ports / kTaper, std::max<int64_t>(full / kLeast, 1), full);
    const int64_t least = std::min(shape_.message / parts_, quota) / kRipe;
    const bool last = to_come_ == 0;
    std::vector<Entry*> ripe;
    bool staged = false;
    for (Entry& entry : pairs_) {
      const Pair& pair = entry.second;
      const bool ready = pair.staged || pair.bytes >= least || pair.to_come == 0;
      if (pair.bytes > 0 && ready) ripe.push_back(&entry);
      staged = staged || pair.staged;
    }
    const auto filled = static_cast<int64_t>(kFilled * static_cast<double>(quota * ports));
    const int64_t bytes = busiest(ripe);
    if (last || (bytes >= quota - quota / kSlack && (staged || sum(ripe) >= filled)))
      send(round, ripe, (bytes + most / 2 - most / kSlack) / most, steps);
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

  static int64_t sum(const std::vector<Entry*>& pairs) {
    int64_t bytes = 0;
    for (const Entry* entry : pairs) bytes += entry->second.bytes;
    return bytes;
  }

  /// In as many turns as it says.
  void send(int32_t round, const std::vector<Entry*>& pairs, int64_t turns,
            std::vector<FanOutStep>& steps) {
    std::vector<PortPair> edges;
    for (const Entry* entry : pairs) edges.push_back({entry->first.first, entry->first.second});
    const std::vector<int32_t> colours = colour_edges(edges);
    for (turns = std::max<int64_t>(turns, 1); turns > 0; --turns) {
      const size_t first = steps.size();
      for (size_t e = 0; e < pairs.size(); ++e) {
        Pair& pair = pairs[e]->second;
        if (pair.bytes == 0) continue;
        const size_t step = first + static_cast<size_t>(colours[e] / kMaxPeersPerStep);
        if (steps.size() <= step) steps.resize(step + 1, {round, false, {}});
        const int64_t rest = pair.bytes - pair.bytes / turns;
        auto end = pair.parts.begin();
        for (; pair.bytes > rest; ++end) pair.bytes -= bytes(*end);
        steps[step].parts.insert(steps[step].parts.end(), pair.parts.begin(), end);
        pair.parts.erase(pair.parts.begin(), end);
        pair.staged = pair.staged && pair.bytes > 0;
      }
    }
  }

  const Problem& problem_;
  const Routing& routing_;
  const FanOutShape shape_;
  const int64_t parts_;  // of a message, that are worth a step
  std::map<std::pair<int32_t, int32_t>, Pair> pairs_;
  std::set<int32_t> ports_;  // that receive
  int64_t to_come_ = 0;
};

/// All domains. What goes on in two hops is packed by hop.
class FanOut {
 public:
  FanOut(const Problem& problem, const Routing& routing,
         std::span<const std::vector<int32_t>> children, const FanOutShape& shape)
      : problem_(problem), routing_(routing), children_(children), shape_(shape) {}

  void announce(const Brought& brought) {
    packer(brought).announce(brought);
    for (const Brought& next : brought_by(brought, -1)) announce(next);
  }

  void add(const Brought& brought) { packer(brought).add(brought); }

  /// Appends the steps that are due after a round.
  void flush(int32_t round) {
    for (auto& [key, packer] : packers_) {  // of a domain: what goes on comes first
      const size_t first = steps_.size();
      packer.flush(round, steps_);
      for (size_t step = first; step < steps_.size(); ++step) {
        steps_[step].goes_on = !std::get<1>(key);
        for (const Brought& part : steps_[step].parts) {
          for (const Brought& next : brought_by(part, static_cast<int32_t>(step))) add(next);
        }
      }
    }
  }

  std::vector<FanOutStep> steps() && { return std::move(steps_); }

 private:
  const std::vector<int32_t>& children_of(const Brought& brought) const {
    return children_[static_cast<size_t>(brought.part.hop)];
  }

  std::vector<Brought> brought_by(const Brought& brought, int32_t step) const {
    std::vector<Brought> next;
    for (const int32_t child : children_of(brought))
      next.push_back({{child, brought.part.box}, brought.round, brought.ranks, step});
    return next;
  }

  FanOutPacker& packer(const Brought& brought) {
    const Hop& hop = routing_.hops[static_cast<size_t>(brought.part.hop)];
    const Key key(domain_of(problem_, hop.to), children_of(brought).empty(),
                  std::bit_width(static_cast<uint32_t>(brought.ranks)));
    // What comes from all ranks of a column goes on as one message.
    const int64_t parts = children_of(brought).empty() ? 1 : kGridParts;
    return packers_.try_emplace(key, problem_, routing_, shape_, parts).first->second;
  }

  using Key = std::tuple<int32_t, bool, int>;  // domain, last hop, log2 of ranks

  const Problem& problem_;
  const Routing& routing_;
  std::span<const std::vector<int32_t>> children_;
  const FanOutShape shape_;
  std::map<Key, FanOutPacker> packers_;
  std::vector<FanOutStep> steps_;
};

}  // namespace

std::vector<FanOutStep> pack_fan_out(const Problem& problem, const Routing& routing,
                                     std::span<const Brought> brought,
                                     std::span<const std::vector<int32_t>> children,
                                     const FanOutShape& shape) {
  FanOut fan_out(problem, routing, children, shape);
  for (const Brought& part : brought) fan_out.announce(part);
  for (size_t i = 0; i < brought.size(); ++i) {
    fan_out.add(brought[i]);
    if (i + 1 < brought.size() && brought[i + 1].round == brought[i].round) continue;
    fan_out.flush(brought[i].round);
  }
  return std::move(fan_out).steps();
}

}  // namespace refit
