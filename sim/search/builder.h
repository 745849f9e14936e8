#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "plans/plan.h"
#include "sim/search/search.h"

namespace refit {

/// The part of a plan that does not depend on the strategy: ranks, tensors, maps, buffers, inputs.
Plan make_frame(const Problem& problem);

/// Where a box lies on a rank before or after a hop.
struct Spot {
  Place place = Place::kTrain;
  int32_t area = -1;  // as in Piece
};

/// Collects the steps of all ranks in any order and writes the programs. One per plan.
class Builder {
 public:
  Builder(const Problem& problem, Plan* plan);

  /// Index of the shard of `rank` that contains `box`; fails the invariant when there is none. On
  /// the train side a quantised box is contained in a shard of the weight that has all that it is
  /// made of.
  int32_t shard_with(Side side, int32_t tensor, int32_t rank, const Box& box) const;

  /// A piece of the transfer (from, to, channel, step); pieces of one transfer keep the order in
  /// which they are added. What a gen shard receives and other gen shards of the rank need too
  /// (redundant experts) is copied to them in one more step of the channel, after all others.
  void add_piece(int32_t channel, int32_t step, int32_t from, int32_t to, int32_t tensor,
                 const Box& box, Spot source, Spot target);

  /// Step (channel, step) of `rank` begins only after its step `on` has ended. Both have to get
  /// pieces.
  void add_wait(int32_t rank, int32_t channel, int32_t step, Wait on);

  /// A staged box of the tensor in its wire dtype.
  int32_t add_slot(int32_t rank, int32_t tensor, const Box& box, int64_t offset, int64_t bytes);

  /// Sorts everything into plan->programs.
  void finish();

 private:
  struct Entry {  // one piece at one end
    int32_t channel, step;
    bool recv;
    int32_t peer;
    int32_t order;
    Piece piece;
  };
  struct WaitEntry {
    int32_t channel, step;
    Wait on;
  };
  struct BoxHash {
    size_t operator()(const Box& box) const;
  };
  struct RankState {
    std::vector<Entry> entries;
    std::vector<WaitEntry> waits;
    std::unordered_map<Box, int32_t, BoxHash> box_ids;
  };
  struct Repeat {  // a box that has arrived in a gen shard, for another gen shard of the rank
    int32_t channel, rank, tensor, from_area, to_area;
    Box box;
  };
  int32_t intern(int32_t rank, const Box& box);
  void find_repeats(int32_t channel, int32_t rank, int32_t tensor, const Box& box, int32_t area);
  void add_repeats();

  const Problem& problem_;
  Plan* plan_;
  std::vector<RankState> ranks_;
  std::vector<Repeat> repeats_;
  std::vector<int32_t> last_step_ = std::vector<int32_t>(kMaxChannels, -1);  // by channel
};

}  // namespace refit
