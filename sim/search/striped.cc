// striped: the schedule of NeMo RL's xferdtensor_python (PEERS.md 3.1 and 3.2). One collective call
// per tensor, in model order; the tensors of a training stage share a communicator, stages
// alternate over two streams. A call cuts what a replica group needs along dimension 0 into one
// stripe per member, sends each stripe from the holders in turn (a counter per source region, reset
// for each tensor), then all-gathers inside the group. Where the stripes do not come out even, one
// member gets everything and broadcasts it.
//
// The all-gather is modelled as recursive doubling, far partners first: like NCCL's rings over all
// network cards it brings one copy into each node. Stripes are dealt in the order in which that
// keeps blocks contiguous; groups whose size is no power of two use a ring. The broadcast is a
// binomial tree.

#include <algorithm>
#include <bit>
#include <map>

#include "base/error.h"
#include "sim/search/atoms.h"
#include "sim/search/schedule.h"
#include "sim/search/strategies.h"

namespace refit {
namespace {

constexpr int32_t kStreams = 2;

class StripedRouter {
 public:
  explicit StripedRouter(const Problem& problem) : problem_(problem) {}

  Routing run() {
    for (int32_t tensor = 0; tensor < std::ssize(problem_.model.tensors); ++tensor)
      transfer(tensor);
    return std::move(routing_);
  }

 private:
  /// Ranks that need the same shard, and that shard.
  using Groups = std::map<Box, std::vector<int32_t>>;

  static Groups group_by_box(const RankMap& map) {
    Groups groups;
    for (const auto& [rank, shards] : map.shards) {
      for (const Shard& shard : shards) {  // a box that a rank has twice comes once
        std::vector<int32_t>& members = groups[shard.box];
        if (members.empty() || members.back() != rank) members.push_back(rank);
      }
    }
    return groups;
  }

  int32_t add_hop(const Box& box, int32_t from, int32_t to, int32_t parent, int32_t batch) {
    routing_.boxes.push_back(box);
    routing_.hops.push_back({.tensor = tensor_,
                             .box = static_cast<int32_t>(routing_.boxes.size()) - 1,
                             .from = from,
                             .to = to,
                             .parent = parent,
                             .turn = {stream_, batch}});
    return static_cast<int32_t>(routing_.hops.size()) - 1;
  }

  void transfer(int32_t tensor) {
    tensor_ = tensor;
    const auto t = static_cast<size_t>(tensor);
    const RankMap& train = problem_.train.maps[static_cast<size_t>(problem_.train.tensor_map[t])];
    const RankMap& gen = problem_.gen.maps[static_cast<size_t>(problem_.gen.tensor_map[t])];
    if (gen.shards.empty()) return;
    // A training stage is told by its ranks.
    std::vector<int32_t> stage;
    for (const auto& [rank, shards] : train.shards) stage.push_back(rank);
    const auto stage_id =
        stages_.try_emplace(stage, static_cast<int32_t>(stages_.size())).first->second;
    stream_ = stage_id % kStreams;

    const Groups sources = group_by_box(train);
    std::map<Box, size_t> turns;  // per source region
    const int32_t first = batch_[stream_];
    int32_t last = first + 1;
    for (const auto& [box, members] : group_by_box(gen)) {
      last = std::max(last, serve_group(box, members, sources, turns, first));
    }
    batch_[stream_] = last;
  }

  /// Sends what one replica group needs; returns the batch after its last.
  int32_t serve_group(const Box& box, const std::vector<int32_t>& members, const Groups& sources,
                      std::map<Box, size_t>& turns, int32_t first) {
    const auto count = static_cast<int64_t>(members.size());
    const bool striped = box.dims() > 0 && count > 1 && box.extent(0) % count == 0;
    const bool doubling = std::has_single_bit(static_cast<uint64_t>(count));
    const int64_t stripes = striped ? count : 1;
    held_.assign(members.size(), {});
    for (int64_t s = 0; s < stripes; ++s) {
      Box stripe = box;
      if (striped) {
        const int64_t rows = box.extent(0) / count;
        stripe.lo[0] = box.lo[0] + s * rows;
        stripe.hi[0] = stripe.lo[0] + rows;
      }
      const auto member = static_cast<size_t>(striped && doubling ? reverse_bits(s, count) : s);
      for (const auto& [region, holders] : sources) {
        const Box part = intersect(region, stripe);
        if (part.empty()) continue;
        const int32_t to = members[member];
        const bool own = std::find(holders.begin(), holders.end(), to) != holders.end();
        const int32_t from = own ? to : holders[turns[region]++ % holders.size()];
        held_[member].push_back({part, add_hop(part, from, to, -1, first)});
      }
    }
    if (count == 1) return first + 1;
    if (!striped) return broadcast(members, first + 1);
    return doubling ? gather_doubling(members, first + 1) : gather_ring(members, first + 1);
  }

  static int64_t reverse_bits(int64_t value, int64_t count) {
    int64_t result = 0;
    for (int64_t bit = 1; bit < count; bit <<= 1) result = (result << 1) | ((value & bit) != 0);
    return result;
  }

  /// What a member holds of the group's shard: boxes and the hops that brought them.
  struct Held {
    Box box;
    int32_t hop;
  };

  void forward(std::vector<Held> what, int32_t from, int32_t to, int32_t batch,
               std::vector<Held>& result) {
    std::sort(what.begin(), what.end(), [](const Held& a, const Held& b) { return a.box < b.box; });
    for (size_t i = 0; i < what.size();) {
      Held run = what[i++];
      while (i < what.size() && extend_rows(run.box, what[i].box)) run.hop = what[i++].hop;
      result.push_back({run.box, add_hop(run.box, from, to, run.hop, batch)});
    }
  }

  /// Appends `next` to `box` when together they are one box, `next` following along dimension 0.
  static bool extend_rows(Box& box, const Box& next) {
    if (box.dims() == 0 || box.hi[0] != next.lo[0]) return false;
    for (int d = 1; d < box.dims(); ++d) {
      if (box.lo[d] != next.lo[d] || box.hi[d] != next.hi[d]) return false;
    }
    box.hi[0] = next.hi[0];
    return true;
  }

  int32_t broadcast(const std::vector<int32_t>& members, int32_t batch) {
    for (size_t reach = 1; reach < members.size(); reach *= 2, ++batch) {
      for (size_t i = 0; i < reach && i + reach < members.size(); ++i) {
        forward(held_[i], members[i], members[i + reach], batch, held_[i + reach]);
      }
    }
    return batch;
  }

  int32_t gather_doubling(const std::vector<int32_t>& members, int32_t batch) {
    for (size_t distance = members.size() / 2; distance >= 1; distance /= 2, ++batch) {
      const auto before = held_;
      for (size_t i = 0; i < members.size(); ++i) {
        const size_t partner = i ^ distance;
        forward(before[i], members[i], members[partner], batch, held_[partner]);
      }
    }
    return batch;
  }

  int32_t gather_ring(const std::vector<int32_t>& members, int32_t batch) {
    auto moving = held_;
    for (size_t round = 1; round < members.size(); ++round, ++batch) {
      std::vector<std::vector<Held>> next(members.size());
      for (size_t i = 0; i < members.size(); ++i) {
        const size_t to = (i + 1) % members.size();
        forward(moving[i], members[i], members[to], batch, next[to]);
      }
      moving = std::move(next);
    }
    return batch;
  }

  const Problem& problem_;
  Routing routing_;
  std::map<std::vector<int32_t>, int32_t> stages_;
  int32_t batch_[kStreams] = {};
  std::vector<std::vector<Held>> held_;  // by member of the current group
  int32_t tensor_ = 0, stream_ = 0;
};

}  // namespace

Plan plan_striped(const Problem& problem, const SearchOptions& options) {
  return schedule_batches(problem, StripedRouter(problem).run(), options);
}

}  // namespace refit
