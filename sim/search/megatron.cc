// megatron, megatron-colored: Megatron-core resharding (PEERS.md 3.6). The source of a parameter is
// chosen by the receiver's number alone: of the tensor-parallel groups that hold it the
// data-parallel replica (rank / groups) mod replicas. `megatron` sends everything in one
// batch_isend_irecv. `megatron-colored` is the nvshmem copy service: tasks are packed into batches
// of at most 256 MB for a pair of ranks, batches with the most conflicts come first, and each goes
// into the first iteration in which neither of its ranks sends or receives anything yet.
//
// Left out: one operation per micro-tile of lcm(source, target) cuts (neighbouring tiles travel in
// one message here), dtype transforms, and the kernel's own pipelining of 128 KB chunks.

#include <algorithm>
#include <map>

#include "sim/search/baselines.h"

namespace refit {
namespace {

constexpr int64_t kBatchBytes = 256'000'000;

/// Regions that together are one copy of the row of the box: tensor-parallel ranks, of the same
/// experts where there are experts.
size_t count_groups(const Groups& sources, const Box& region, bool experts) {
  size_t count = 0;
  for (const auto& [other, holders] : sources) {
    count += !experts || (other.lo[0] == region.lo[0] && other.hi[0] == region.hi[0]);
  }
  return count;
}

void send_all(Baseline& baseline) {
  for (const int32_t tensor : baseline.tensors) {
    const Groups& sources = baseline.groups(Side::kTrain, tensor);
    const Role role = baseline.tensor(tensor).role;
    const bool experts = role == Role::kExpertColumn || role == Role::kExpertRow;
    for (const auto& [box, members] : baseline.groups(Side::kGen, tensor)) {
      for (const auto& [region, holders] : sources) {
        const Box part = intersect(region, box);
        if (part.empty()) continue;
        const size_t groups = count_groups(sources, region, experts);
        for (const int32_t to : members) {
          const size_t replica = static_cast<size_t>(to) / groups % holders.size();
          const int32_t from = has_rank(holders, to) ? to : holders[replica];
          baseline.send(tensor, part, from, to, {});
        }
      }
    }
  }
}

struct PairBatch {
  int32_t from = -1, to = -1;
  int64_t bytes = 0;
  size_t conflicts = 0;
  std::vector<size_t> moves = {};
};

/// The moves in batches of a pair each, largest first.
std::vector<PairBatch> pack_pairs(const Baseline& baseline) {
  std::map<std::pair<int32_t, int32_t>, std::vector<size_t>> pairs;
  const std::vector<Move>& moves = baseline.script.moves;
  for (size_t i = 0; i < moves.size(); ++i) pairs[{moves[i].from, moves[i].to}].push_back(i);
  const auto bytes = [&](size_t i) { return baseline.bytes(moves[i].tensor, moves[i].box); };
  std::vector<PairBatch> batches;
  for (auto& [pair, list] : pairs) {
    std::stable_sort(list.begin(), list.end(),
                     [&](size_t a, size_t b) { return bytes(a) > bytes(b); });
    for (const size_t i : list) {
      if (batches.empty() || batches.back().from != pair.first ||
          batches.back().to != pair.second || batches.back().bytes + bytes(i) > kBatchBytes) {
        batches.push_back({.from = pair.first, .to = pair.second});
      }
      batches.back().bytes += bytes(i);
      batches.back().moves.push_back(i);
    }
  }
  return batches;
}

}  // namespace

void make_megatron(Baseline& baseline) { send_all(baseline); }

void make_megatron_colored(Baseline& baseline) {
  send_all(baseline);
  std::vector<PairBatch> batches = pack_pairs(baseline);
  std::map<int32_t, size_t> degree;  // by rank
  for (const PairBatch& batch : batches) {
    ++degree[batch.from];
    if (batch.to != batch.from) ++degree[batch.to];
  }
  for (PairBatch& batch : batches) batch.conflicts = degree[batch.from] + degree[batch.to];
  std::stable_sort(batches.begin(), batches.end(), [](const PairBatch& a, const PairBatch& b) {
    return a.conflicts > b.conflicts;
  });
  std::map<int32_t, std::vector<bool>> busy;  // by rank: iterations
  for (const PairBatch& batch : batches) {
    std::vector<bool>& from = busy[batch.from];
    std::vector<bool>& to = busy[batch.to];
    const auto taken = [](const std::vector<bool>& rank, size_t i) {
      return i < rank.size() && rank[i];
    };
    size_t iteration = 0;
    while (taken(from, iteration) || taken(to, iteration)) ++iteration;
    for (std::vector<bool>* rank : {&from, &to}) {
      if (rank->size() <= iteration) rank->resize(iteration + 1);
      (*rank)[iteration] = true;
    }
    for (const size_t i : batch.moves) {
      baseline.script.moves[i].turn.batch = static_cast<int32_t>(iteration);
    }
  }
}

}  // namespace refit
