// alpa: AlpaComm's cross-mesh resharding in broadcast mode (PEERS.md 3.13, arXiv 2211.05322). What
// one source tile has for one target tile is a unit: one broadcast to all that need it. A host's
// network card is one resource; a unit occupies those of its sender and of all its receivers for a
// time in proportion to its bytes. Senders and order, tensor by tensor:
//
//   order=greedy  at each step 100 random sets of units that can run at once; the largest is taken,
//                 of equals the one with the most even load of senders.
//   order=dfs     depth-first over next unit and sender, pruned by giving the rest to the least
//                 loaded senders (which is no proven bound); a budget of nodes in place of its
//                 second.
//
// Units of a tensor run when the units before them on their cards have; a unit is pipelined along
// its tree like a ring of NCCL.
//
// Left out: the rewriting of the target into slices with a local all-gather.

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>

#include "base/error.h"
#include "sim/search/baselines.h"
#include "sim/search/chunk.h"

namespace refit {
namespace {

constexpr int kRounds = 100;
constexpr int64_t kDfsNodes = 20'000;
constexpr int32_t kMostChunks = 8;
constexpr int64_t kSmallestChunk = int64_t{4} << 20;

struct Unit {
  Box box;
  const std::vector<int32_t>* holders = nullptr;
  const std::vector<int32_t>* members = nullptr;
  std::vector<int32_t> senders;    // hosts, ascending
  std::vector<int32_t> receivers;  // hosts, ascending
  double bytes = 0;
};

struct Choices {
  std::vector<size_t> order;     // units
  std::vector<int32_t> senders;  // hosts, by unit
};

using Clocks = std::map<int32_t, double>;  // by host

class UnitSearch {
 public:
  UnitSearch(const std::vector<Unit>& units, uint64_t seed) : units_(units), random_(seed) {}

  Choices greedy() {
    Choices choices{.order = {}, .senders = std::vector<int32_t>(units_.size(), -1)};
    std::vector<size_t> left(units_.size());
    std::iota(left.begin(), left.end(), size_t{0});
    Clocks sent;
    while (!left.empty()) {
      std::vector<std::pair<size_t, int32_t>> best;
      double best_spread = 0;
      for (int round = 0; round < kRounds; ++round) {
        for (size_t i = left.size(); i > 1; --i) std::swap(left[i - 1], left[random_() % i]);
        std::map<int32_t, bool> busy;
        std::vector<std::pair<size_t, int32_t>> taken;
        Clocks load = sent;
        for (const size_t u : left) {
          const int32_t sender = free_sender(units_[u], busy, load);
          if (sender < 0) continue;
          taken.emplace_back(u, sender);
          load[sender] += units_[u].bytes;
          busy[sender] = true;
          for (const int32_t host : units_[u].receivers) busy[host] = true;
        }
        const double spread = deviation(load);
        if (taken.size() > best.size() || (taken.size() == best.size() && spread < best_spread)) {
          best = taken;
          best_spread = spread;
        }
      }
      REFIT_CHECK(!best.empty());
      for (const auto& [u, sender] : best) {
        choices.order.push_back(u);
        choices.senders[u] = sender;
        sent[sender] += units_[u].bytes;
        std::erase(left, u);
      }
      std::sort(left.begin(), left.end());
    }
    return choices;
  }

  Choices dfs() {
    best_ = list_order();
    best_end_ = makespan(best_);
    Choices now{.order = {}, .senders = std::vector<int32_t>(units_.size(), -1)};
    used_.assign(units_.size(), false);
    nodes_ = 0;
    explore(now, {});
    return best_;
  }

 private:
  static int32_t free_sender(const Unit& unit, const std::map<int32_t, bool>& busy,
                             const Clocks& load) {
    for (const int32_t host : unit.receivers) {
      if (busy.contains(host)) return -1;
    }
    int32_t best = -1;
    for (const int32_t host : unit.senders) {
      if (busy.contains(host)) continue;
      if (best < 0 || at(load, host) < at(load, best)) best = host;
    }
    return best;
  }

  static double at(const Clocks& clocks, int32_t host) {
    const auto it = clocks.find(host);
    return it == clocks.end() ? 0 : it->second;
  }

  static double deviation(const Clocks& load) {
    double sum = 0, squares = 0;
    for (const auto& [host, value] : load) {
      sum += value;
      squares += value * value;
    }
    const auto n = static_cast<double>(std::max<size_t>(load.size(), 1));
    return std::sqrt(std::max(squares / n - sum / n * (sum / n), 0.0));
  }

  static double run(const Unit& unit, int32_t sender, Clocks& clocks) {
    double start = at(clocks, sender);
    for (const int32_t host : unit.receivers) start = std::max(start, at(clocks, host));
    const double end = start + unit.bytes;
    clocks[sender] = end;
    for (const int32_t host : unit.receivers) clocks[host] = end;
    return end;
  }

  /// As given, each from the sender that is free first.
  Choices list_order() const {
    Choices choices{.order = {}, .senders = std::vector<int32_t>(units_.size(), -1)};
    Clocks clocks;
    for (size_t u = 0; u < units_.size(); ++u) {
      choices.order.push_back(u);
      choices.senders[u] = least_loaded(units_[u], clocks);
      run(units_[u], choices.senders[u], clocks);
    }
    return choices;
  }

  static int32_t least_loaded(const Unit& unit, const Clocks& clocks) {
    return *std::min_element(unit.senders.begin(), unit.senders.end(),
                             [&](int32_t a, int32_t b) { return at(clocks, a) < at(clocks, b); });
  }

  double makespan(const Choices& choices) const {
    Clocks clocks;
    double end = 0;
    for (const size_t u : choices.order) {
      end = std::max(end, run(units_[u], choices.senders[u], clocks));
    }
    return end;
  }

  void explore(Choices& now, const Clocks& clocks) {
    if (++nodes_ > kDfsNodes) return;
    if (now.order.size() == units_.size()) {
      double end = 0;
      for (const auto& [host, clock] : clocks) end = std::max(end, clock);
      if (end < best_end_) {
        best_ = now;
        best_end_ = end;
      }
      return;
    }
    Clocks estimate = clocks;
    for (size_t u = 0; u < units_.size(); ++u) {
      if (!used_[u]) estimate[least_loaded(units_[u], estimate)] += units_[u].bytes;
    }
    for (const auto& [host, clock] : estimate) {
      if (clock >= best_end_) return;
    }
    for (size_t u = 0; u < units_.size() && nodes_ <= kDfsNodes; ++u) {
      if (used_[u]) continue;
      used_[u] = true;
      now.order.push_back(u);
      for (const int32_t sender : units_[u].senders) {
        now.senders[u] = sender;
        Clocks next = clocks;
        run(units_[u], sender, next);
        explore(now, next);
      }
      now.order.pop_back();
      used_[u] = false;
    }
  }

  const std::vector<Unit>& units_;
  std::mt19937_64 random_;
  Choices best_;
  double best_end_ = 0;
  std::vector<bool> used_;
  int64_t nodes_ = 0;
};

class AlpaResharder {
 public:
  explicit AlpaResharder(Baseline& baseline)
      : baseline_(baseline), dfs_(baseline.option("order") == "dfs") {}

  void run() {
    for (const int32_t tensor : baseline_.tensors) reshard(tensor);
  }

 private:
  int32_t host(int32_t rank) const {
    const int32_t gpu = baseline_.problem.gpu_of_rank[static_cast<size_t>(rank)];
    return baseline_.problem.fabric.gpus[static_cast<size_t>(gpu)].node;
  }

  std::vector<int32_t> hosts(const std::vector<int32_t>& ranks) const {
    std::vector<int32_t> result;
    for (const int32_t rank : ranks) result.push_back(host(rank));
    std::sort(result.begin(), result.end());
    result.erase(std::unique(result.begin(), result.end()), result.end());
    return result;
  }

  std::vector<Unit> make_units(int32_t tensor) {
    std::vector<Unit> units;
    for (const auto& [region, holders] : baseline_.groups(Side::kTrain, tensor)) {
      for (const auto& [box, members] : baseline_.groups(Side::kGen, tensor)) {
        const Box part = intersect(region, box);
        if (part.empty()) continue;
        units.push_back({part, &holders, &members, hosts(holders), hosts(members),
                         static_cast<double>(baseline_.bytes(tensor, part))});
      }
    }
    return units;
  }

  void reshard(int32_t tensor) {
    const std::vector<Unit> units = make_units(tensor);
    const auto t = static_cast<size_t>(tensor);
    const std::pair maps(baseline_.problem.train.tensor_map[t],
                         baseline_.problem.gen.tensor_map[t]);
    auto it = known_.find(maps);
    if (it == known_.end()) {
      UnitSearch search(units, baseline_.seed);
      it = known_.emplace(maps, dfs_ ? search.dfs() : search.greedy()).first;
    }
    // A unit begins when those before it on its cards have ended.
    const Choices& choices = it->second;
    std::map<int32_t, int32_t> free_at;  // by host: batch
    int32_t end = batch_;
    for (const size_t u : choices.order) {
      std::vector<int32_t> cards = units[u].receivers;
      cards.push_back(choices.senders[u]);
      int32_t begin = batch_;
      for (const int32_t card : cards) {
        const auto found = free_at.find(card);
        if (found != free_at.end()) begin = std::max(begin, found->second);
      }
      const int32_t after = broadcast(tensor, units[u], choices.senders[u], begin);
      for (const int32_t card : cards) free_at[card] = after;
      end = std::max(end, after);
    }
    batch_ = end;
  }

  /// Returns the batch after the last.
  int32_t broadcast(int32_t tensor, const Unit& unit, int32_t sender, int32_t begin) {
    std::vector<int32_t> candidates, members;
    for (const int32_t rank : *unit.holders) {
      if (host(rank) == sender) candidates.push_back(rank);
    }
    const int32_t from = candidates[turn_++ % candidates.size()];
    for (const int32_t rank : *unit.members) {
      if (has_rank(*unit.holders, rank)) {
        baseline_.send(tensor, unit.box, rank, rank, {0, begin});
      } else {
        members.push_back(rank);
      }
    }
    const std::vector<Leg> legs =
        make_tree(baseline_.problem, from, members, static_cast<int32_t>(turn_ % 1024));
    int32_t depth = 0;
    for (const Leg& leg : legs) depth = std::max(depth, leg.depth + 1);
    const auto chunks = static_cast<int32_t>(std::clamp<int64_t>(
        static_cast<int64_t>(unit.bytes) / kSmallestChunk, 1, depth > 1 ? kMostChunks : 1));
    int32_t chunk = 0;
    for (const Box& box :
         slice_box(unit.box, chunks, dtype_bits(baseline_.tensor(tensor).dtype) == 4)) {
      for (const Leg& leg : legs) {
        baseline_.script.moves.push_back(
            {.tensor = tensor,
             .box = box,
             .from = leg.from,
             .to = leg.to,
             .turn = {0, begin + chunk + leg.depth},
             .source = leg.from == from ? Place::kTrain : Place::kGen});
      }
      ++chunk;
    }
    return begin + std::max(chunk - 1 + depth, 1);
  }

  Baseline& baseline_;
  const bool dfs_;
  std::map<std::pair<int32_t, int32_t>, Choices> known_;  // by maps
  int32_t batch_ = 0;
  size_t turn_ = 0;
};

}  // namespace

void make_alpa(Baseline& baseline) { AlpaResharder(baseline).run(); }

}  // namespace refit
