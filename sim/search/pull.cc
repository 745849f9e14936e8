// pull-first, pull-balanced: receivers read what they need.
//
// `pull-first` is ModelExpress (PEERS.md 3.7; torchstore, 3.13, chooses alike): of several holders
// of a shard the first one serves everybody. A copy that would need more than 64 runs pulls the
// whole shards where these cut the first dimension, and slices locally; all reads are posted at
// once.
//
// `pull-balanced` is vLLM's sharded_rdt (PEERS.md 3.8): exact reads, each from the holder that has
// the least to send so far. Transformer blocks are served one after the other, two at a time
// (lookahead), pipeline stages strictly one after the other. The host replays an operation chain
// for every parameter that a worker needs.
//
// Left out: ModelExpress' merging of descriptors; of sharded_rdt the gather over the
// tensor-parallel group of the trainer (readers take each part from who holds it: the same bytes on
// every network card), its serve buffers and its signals.

#include <algorithm>
#include <map>

#include "sim/search/baselines.h"
#include "sim/search/chunk.h"

namespace refit {
namespace {

constexpr int64_t kMostRuns = 64;
constexpr int32_t kLookahead = 2;

/// Do the regions cut nothing but the first dimension?
bool cut_rows_only(const Groups& sources, const Box& all) {
  return std::all_of(sources.begin(), sources.end(), [&](const auto& group) {
    for (int d = 1; d < all.dims(); ++d) {
      if (group.first.extent(d) != all.extent(d)) return false;
    }
    return true;
  });
}

/// Pulls whole shards into two halves of the reader's staging memory in turn, and slices them.
class OverFetcher {
 public:
  explicit OverFetcher(Baseline& baseline) : baseline_(baseline) {}

  void pull(int32_t tensor, const Box& region, const Box& part, int32_t from, int32_t to) {
    const Tensor& t = baseline_.tensor(tensor);
    const int64_t bits = dtype_bits(t.dtype);
    std::vector<Box> todo = {region};
    while (!todo.empty()) {
      const Box box = todo.back();
      todo.pop_back();
      const Cutting cutting = cut_box(box, baseline_.message * 8 / bits, bits == 4);
      todo.insert(todo.end(), cutting.left.rbegin(), cutting.left.rend());
      for (const Box& taken : cutting.taken) {
        const int32_t n = next_[to]++;
        const int32_t slot =
            baseline_.script.add_slot({to, tensor, taken, n % 2 * baseline_.message});
        baseline_.script.moves.push_back({.tensor = tensor,
                                          .box = taken,
                                          .from = from,
                                          .to = to,
                                          .turn = {1, n},
                                          .target_slot = slot});
        const Box wanted = intersect(taken, part);
        if (wanted.empty()) continue;
        baseline_.script.moves.push_back({.tensor = tensor,
                                          .box = wanted,
                                          .from = to,
                                          .to = to,
                                          .turn = {1, n + 1},
                                          .source = Place::kStaging,
                                          .source_slot = slot});
      }
    }
  }

 private:
  Baseline& baseline_;
  std::map<int32_t, int32_t> next_;  // by reader: its next chunk
};

}  // namespace

void make_pull_first(Baseline& baseline) {
  OverFetcher over_fetcher(baseline);
  for (const int32_t tensor : baseline.tensors) {
    const Groups& sources = baseline.groups(Side::kTrain, tensor);
    const bool rows_only = cut_rows_only(sources, whole(baseline.tensor(tensor).shape));
    for (const auto& [box, members] : baseline.groups(Side::kGen, tensor)) {
      int64_t runs = 0;
      for (const auto& [region, holders] : sources) {
        const Box part = intersect(region, box);
        if (!part.empty()) runs += count_runs(part, region, box);
      }
      for (const auto& [region, holders] : sources) {
        const Box part = intersect(region, box);
        if (part.empty()) continue;
        for (const int32_t to : members) {
          if (has_rank(holders, to)) {
            baseline.send(tensor, part, to, to, {});
          } else if (runs > kMostRuns && rows_only) {
            over_fetcher.pull(tensor, region, part, holders.front(), to);
          } else {
            baseline.send(tensor, part, holders.front(), to, {});
          }
        }
      }
    }
  }
}

void make_pull_balanced(Baseline& baseline) {
  const TrainStages stages(baseline.problem);
  std::vector<int32_t> order = baseline.tensors;
  const auto block = [&](int32_t tensor) {
    return std::pair(stages.of(tensor), baseline.tensor(tensor).layer);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return block(a) < block(b); });
  std::map<int32_t, int64_t> sent;       // by holder
  int32_t served = 0;                    // blocks
  std::map<int32_t, double> parameters;  // of the block, by reader
  for (size_t i = 0; i < order.size(); ++i) {
    const int32_t tensor = order[i];
    const Turn turn{served % kLookahead, served / kLookahead};
    const Groups& sources = baseline.groups(Side::kTrain, tensor);
    const double share =
        static_cast<double>(count_parameters(baseline.tensor(tensor))) /
        static_cast<double>(std::max<int64_t>(
            baseline.tensor(tensor).shape.count > 0 ? baseline.tensor(tensor).shape[0] : 1, 1));
    for (const auto& [box, members] : baseline.groups(Side::kGen, tensor)) {
      const double handled = count_parameters(baseline.tensor(tensor)) > 1
                                 ? share * static_cast<double>(box.extent(0))
                                 : 1;
      for (const int32_t to : members) {
        parameters[to] += handled;
        for (const auto& [region, holders] : sources) {
          const Box part = intersect(region, box);
          if (part.empty()) continue;
          int32_t from = to;
          if (!has_rank(holders, to)) {
            from = *std::min_element(holders.begin(), holders.end(),
                                     [&](int32_t a, int32_t b) { return sent[a] < sent[b]; });
            sent[from] += baseline.bytes(tensor, part);
          }
          baseline.send(tensor, part, from, to, turn);
        }
      }
    }
    if (i + 1 < order.size() && block(order[i + 1]) == block(tensor)) continue;
    double most = 0;
    for (const auto& [reader, count] : parameters) most = std::max(most, count);
    baseline.script.host.push_back({turn, most, 0});
    parameters.clear();
    ++served;
  }
}

}  // namespace refit
