// striped: the schedule of NeMo RL's xferdtensor_python (PEERS.md 3.1 and 3.2). One collective call
// per tensor, in model order; the tensors of a training stage share a communicator, stages
// alternate over two streams. A call cuts what a replica group needs along dimension 0 into one
// stripe per member, sends each stripe from the holders in turn (a counter per source region, reset
// for each tensor), then all-gathers inside the group. Where no group has replicas, stripes do not
// come out even, or a piece is contiguous at neither end, the first holder of each region sends to
// one member, which broadcasts.
//
// The all-gather is modelled as recursive doubling, far partners first: like NCCL's rings over all
// network cards it brings one copy into each node. Stripes are dealt in the order in which that
// keeps blocks contiguous; groups whose size is no power of two use a ring. The host handles every
// checkpoint parameter of a call before it.

#include <algorithm>
#include <bit>

#include "sim/search/baselines.h"

namespace refit {
namespace {

constexpr int32_t kStreams = 2;

class StripedRouter {
 public:
  explicit StripedRouter(Baseline& baseline) : baseline_(baseline), stages_(baseline.problem) {}

  void run() {
    for (const int32_t tensor : baseline_.tensors) transfer(tensor);
  }

 private:
  void transfer(int32_t tensor) {
    tensor_ = tensor;
    const int32_t stream = stages_.of(tensor) % kStreams;
    const Groups& sources = baseline_.groups(Side::kTrain, tensor);
    const Groups& targets = baseline_.groups(Side::kGen, tensor);
    const bool striped = can_stripe(sources, targets);
    std::map<Box, size_t> turns;  // per source region
    const Turn first{stream, batch_[stream]};
    int32_t last = first.batch + 1;
    for (const auto& [box, members] : targets) {
      last = std::max(last, striped ? serve_striped(box, members, sources, turns, first)
                                    : serve_first(box, members, sources, first));
    }
    batch_[stream] = last;
    baseline_.script.host.push_back(
        {first, static_cast<double>(count_parameters(baseline_.tensor(tensor))), 0});
  }

  static bool can_stripe(const Groups& sources, const Groups& targets) {
    bool replicas = false;
    for (const auto& [box, members] : targets) {
      const auto count = static_cast<int64_t>(members.size());
      replicas = replicas || count > 1;
      if (box.dims() == 0 || box.extent(0) % count != 0) return false;
      for (const auto& [region, holders] : sources) {
        const Box part = intersect(region, box);
        if (!part.empty() && count_runs(part, region, region) > 1 && count_runs(part, box, box) > 1)
          return false;
      }
    }
    return replicas;
  }

  void send(const Box& box, int32_t from, int32_t to, Place source, Turn turn) {
    baseline_.script.moves.push_back(
        {.tensor = tensor_, .box = box, .from = from, .to = to, .turn = turn, .source = source});
  }

  /// One member receives everything and broadcasts it. Returns the batch after the last.
  int32_t serve_first(const Box& box, const std::vector<int32_t>& members, const Groups& sources,
                      Turn first) {
    std::vector<Box> parts;
    for (const auto& [region, holders] : sources) {
      const Box part = intersect(region, box);
      if (part.empty()) continue;
      const int32_t from = has_rank(holders, members[0]) ? members[0] : holders[0];
      send(part, from, members[0], Place::kTrain, first);
    }
    const std::vector<int32_t> others(members.begin() + 1, members.end());
    int32_t depth = 0;
    for (const Leg& leg : make_tree(baseline_.problem, members[0], others, 0)) {
      depth = std::max(depth, leg.depth + 1);
      send(box, leg.from, leg.to, Place::kGen, {first.lane, first.batch + 1 + leg.depth});
    }
    return first.batch + 1 + depth;
  }

  int32_t serve_striped(const Box& box, const std::vector<int32_t>& members, const Groups& sources,
                        std::map<Box, size_t>& turns, Turn first) {
    const auto count = static_cast<int64_t>(members.size());
    const bool doubling = std::has_single_bit(static_cast<uint64_t>(count));
    held_.assign(members.size(), {});
    for (int64_t s = 0; s < count; ++s) {
      Box stripe = box;
      const int64_t rows = box.extent(0) / count;
      stripe.lo[0] = box.lo[0] + s * rows;
      stripe.hi[0] = stripe.lo[0] + rows;
      const auto member = static_cast<size_t>(doubling ? reverse_bits(s, count) : s);
      held_[member].push_back(stripe);
      for (const auto& [region, holders] : sources) {
        const Box part = intersect(region, stripe);
        if (part.empty()) continue;
        const int32_t to = members[member];
        const int32_t from = has_rank(holders, to) ? to : holders[turns[region]++ % holders.size()];
        send(part, from, to, Place::kTrain, first);
      }
    }
    if (count == 1) return first.batch + 1;
    const Turn gather{first.lane, first.batch + 1};
    return doubling ? gather_doubling(members, gather) : gather_ring(members, gather);
  }

  static int64_t reverse_bits(int64_t value, int64_t count) {
    int64_t result = 0;
    for (int64_t bit = 1; bit < count; bit <<= 1) result = (result << 1) | ((value & bit) != 0);
    return result;
  }

  /// Sends boxes that a member has received, joined where they touch.
  void forward(std::vector<Box> what, int32_t from, int32_t to, Turn turn,
               std::vector<Box>& result) {
    std::sort(what.begin(), what.end());
    for (size_t i = 0; i < what.size();) {
      Box run = what[i++];
      while (i < what.size() && run.hi[0] == what[i].lo[0]) run.hi[0] = what[i++].hi[0];
      send(run, from, to, Place::kGen, turn);
      result.push_back(run);
    }
  }

  int32_t gather_doubling(const std::vector<int32_t>& members, Turn turn) {
    for (size_t distance = members.size() / 2; distance >= 1; distance /= 2, ++turn.batch) {
      const auto before = held_;
      for (size_t i = 0; i < members.size(); ++i) {
        const size_t partner = i ^ distance;
        forward(before[i], members[i], members[partner], turn, held_[partner]);
      }
    }
    return turn.batch;
  }

  int32_t gather_ring(const std::vector<int32_t>& members, Turn turn) {
    auto moving = held_;
    for (size_t round = 1; round < members.size(); ++round, ++turn.batch) {
      std::vector<std::vector<Box>> next(members.size());
      for (size_t i = 0; i < members.size(); ++i) {
        const size_t to = (i + 1) % members.size();
        forward(moving[i], members[i], members[to], turn, next[to]);
      }
      moving = std::move(next);
    }
    return turn.batch;
  }

  Baseline& baseline_;
  const TrainStages stages_;
  int32_t batch_[kStreams] = {};
  std::vector<std::vector<Box>> held_;  // by member of the current group
  int32_t tensor_ = 0;
};

}  // namespace

void make_striped(Baseline& baseline) { StripedRouter(baseline).run(); }

}  // namespace refit
