// miles: the P2P transfer of miles (PEERS.md 3.10). Every rank of a pipeline stage gathers the
// whole stage, bucket by bucket (all-gathers over tensor- and expert-parallel ranks), and writes to
// the inference ranks assigned to it: the first ones one to one, each further one to the least busy
// source that already serves the same engine rank, else in turn. Writes of a source go one after
// the other; only the last one overlaps the gather of the next bucket.
//
// Left out: the conversion in pinned host memory and its copies over PCIe (the writes leave from
// GPU memory here); buckets of 1 GB where the staging bound is less.

#include <algorithm>
#include <map>

#include "sim/search/baselines.h"
#include "sim/search/chunk.h"

namespace refit {
namespace {

struct BucketPart {
  int32_t tensor;
  Box box;
  const std::vector<int32_t>* holders;
};

struct Bucket {
  std::vector<BucketPart> parts;
  int64_t bytes = 0;
  double parameters = 0;
};

class MilesWriter {
 public:
  explicit MilesWriter(Baseline& baseline)
      : baseline_(baseline), stages_(baseline.problem), lanes_(baseline.choice.misc ? 2 : 4) {
    find_engine_ranks();
  }

  void run() {
    next_.assign(static_cast<size_t>(lanes_), 0);
    halves_.assign(static_cast<size_t>(lanes_), 0);
    std::vector<std::vector<Bucket>> buckets;  // by stage
    for (int32_t stage = 0; stage < stages_.count(); ++stage) {
      buckets.push_back(cut_buckets(stage));
      for (const Bucket& bucket : buckets.back()) {
        int64_t bytes = 0;
        for (const BucketPart& part : bucket.parts) bytes += staged_bytes(part);
        half_bytes_ = std::max(half_bytes_, bytes);
      }
    }
    for (int32_t stage = 0; stage < stages_.count(); ++stage) {
      assign_targets(stage);
      for (const Bucket& bucket : buckets[static_cast<size_t>(stage)]) send_bucket(stage, bucket);
    }
  }

 private:
  /// Gen ranks that need the same boxes of all tensors are one engine rank of different engines.
  void find_engine_ranks() {
    std::map<std::vector<std::vector<Box>>, int32_t> known;
    for (const int32_t rank : baseline_.problem.gen.ranks) {
      std::vector<std::vector<Box>> needs;
      for (const RankMap& map : baseline_.problem.gen.maps) {
        needs.emplace_back();
        const std::vector<Shard>* shards = map.find(rank);
        if (shards == nullptr) continue;
        for (const Shard& shard : *shards) needs.back().push_back(shard.box);
      }
      engine_rank_[rank] =
          known.try_emplace(needs, static_cast<int32_t>(known.size())).first->second;
    }
  }

  void assign_targets(int32_t stage) {
    const std::vector<int32_t>& sources = stages_.ranks(stage);
    targets_.assign(sources.size(), {});
    std::map<int32_t, std::vector<size_t>> serving;  // by engine rank: sources
    size_t turn = 0;
    for (const int32_t target : baseline_.problem.gen.ranks) {
      std::vector<size_t>& known = serving[engine_rank_.at(target)];
      size_t source = turn % sources.size();
      if (turn >= sources.size() && !known.empty()) {
        source = *std::min_element(known.begin(), known.end(), [&](size_t a, size_t b) {
          return targets_[a].size() < targets_[b].size();
        });
      }
      ++turn;
      targets_[source].push_back(target);
      known.push_back(source);
    }
  }

  /// Small tensors together; a large one in slices, each with its part of every region.
  std::vector<Bucket> cut_buckets(int32_t stage) {
    std::vector<Bucket> buckets;
    for (const int32_t tensor : baseline_.tensors) {
      if (stages_.of(tensor) != stage) continue;
      const Tensor& t = baseline_.tensor(tensor);
      const int64_t bytes = tensor_bytes(t);
      const auto slices = static_cast<int32_t>((bytes + baseline_.message - 1) / baseline_.message);
      if (buckets.empty() || slices > 1 || buckets.back().bytes + bytes > baseline_.message) {
        buckets.emplace_back();
      }
      const size_t first = buckets.size() - 1;
      for (const auto& [region, holders] : baseline_.groups(Side::kTrain, tensor)) {
        size_t at = first;
        for (const Box& slice : slice_box(region, slices, dtype_bits(t.dtype) == 4)) {
          if (at == buckets.size()) buckets.emplace_back();
          Bucket& bucket = buckets[at++];
          const int64_t part = baseline_.bytes(tensor, slice);
          bucket.parts.push_back({tensor, slice, &holders});
          bucket.bytes += part;
          bucket.parameters += static_cast<double>(count_parameters(t)) *
                               static_cast<double>(part) / static_cast<double>(bytes);
        }
      }
    }
    return buckets;
  }

  void send_bucket(int32_t stage, const Bucket& bucket) {
    const std::vector<int32_t>& sources = stages_.ranks(stage);
    int32_t& next = next_[static_cast<size_t>(stage % lanes_)];
    const Turn turn{stage % lanes_, next};
    baseline_.script.host.push_back({turn, bucket.parameters, 0});
    // Gather: every part to every rank of the stage; halves of the memory in turn, since the last
    // write overlaps the next gather.
    int32_t depth = 1;  // packing on the holder itself
    int64_t& half = halves_[static_cast<size_t>(turn.lane)];
    int64_t offset = (turn.lane * 2 + half) * half_bytes_;
    half = 1 - half;
    std::vector<std::map<int32_t, int32_t>> slots;  // by part: rank, slot
    for (size_t p = 0; p < bucket.parts.size(); ++p) {
      const BucketPart& part = bucket.parts[p];
      std::map<int32_t, int32_t>& slot = slots.emplace_back();
      for (const int32_t rank : sources) {
        slot[rank] = baseline_.script.add_slot({rank, part.tensor, part.box, offset});
      }
      offset += staged_bytes(part);
      const int32_t holder = (*part.holders)[p % part.holders->size()];
      add(part, part.box, holder, holder, -1, slot.at(holder), turn);
      std::vector<int32_t> others;
      for (const int32_t rank : sources) {
        if (rank != holder) others.push_back(rank);
      }
      for (const Leg& leg : make_tree(baseline_.problem, holder, others, static_cast<int32_t>(p))) {
        add(part, part.box, leg.from, leg.to, slot.at(leg.from), slot.at(leg.to),
            {turn.lane, turn.batch + 1 + leg.depth});
        depth = std::max(depth, leg.depth + 2);
      }
    }
    size_t most = 1;
    for (size_t s = 0; s < sources.size(); ++s) {
      most = std::max(most, targets_[s].size());
      for (size_t k = 0; k < targets_[s].size(); ++k) {
        const Turn write{turn.lane, turn.batch + depth + static_cast<int32_t>(k)};
        for (size_t p = 0; p < bucket.parts.size(); ++p) {
          write_part(bucket.parts[p], sources[s], targets_[s][k], slots[p].at(sources[s]), write);
        }
      }
    }
    next = turn.batch + depth + static_cast<int32_t>(most) - 1;
  }

  void write_part(const BucketPart& part, int32_t from, int32_t to, int32_t slot, Turn turn) {
    for (const auto& [box, members] : baseline_.groups(Side::kGen, part.tensor)) {
      const Box wanted = intersect(box, part.box);
      if (!wanted.empty() && has_rank(members, to)) add(part, wanted, from, to, slot, -1, turn);
    }
  }

  void add(const BucketPart& part, const Box& box, int32_t from, int32_t to, int32_t source,
           int32_t target, Turn turn) {
    baseline_.script.moves.push_back({.tensor = part.tensor,
                                      .box = box,
                                      .from = from,
                                      .to = to,
                                      .turn = turn,
                                      .source = source >= 0 ? Place::kStaging : Place::kTrain,
                                      .source_slot = source,
                                      .target_slot = target});
  }

  /// Of a part in a bucket, aligned.
  int64_t staged_bytes(const BucketPart& part) const {
    return (baseline_.bytes(part.tensor, part.box) + 15) / 16 * 16;
  }

  Baseline& baseline_;
  const TrainStages stages_;
  const int32_t lanes_;
  std::map<int32_t, int32_t> engine_rank_;     // by gen rank
  std::vector<std::vector<int32_t>> targets_;  // by source of the current stage
  std::vector<int32_t> next_;                  // by lane: batch
  std::vector<int64_t> halves_;                // by lane: the one that is next
  int64_t half_bytes_ = 0;
};

}  // namespace

void make_miles(Baseline& baseline) { MilesWriter(baseline).run(); }

}  // namespace refit
