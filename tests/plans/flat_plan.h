#pragma once

#include <cstdint>
#include <vector>

#include "plans/plan.h"

namespace refit {

// A plan as tests like to write it: messages in any order, each end on its own, so that an end can
// be broken alone.

struct FlatPiece {
  int32_t tensor = 0;
  Box box;
  Place place = Place::kTrain;
  int32_t area = 0;
};

struct FlatEnd {
  bool sends = false;
  int32_t rank = 0, peer = 0, channel = 0, step = 0;
  std::vector<FlatPiece> pieces;
};

/// (channel, step) of a rank waits.
struct FlatWait {
  int32_t rank = 0, channel = 0, step = 0;
  Wait on;
};

struct FlatSlot {
  int32_t tensor = 0;
  Box box;
  int64_t offset = 0;
};

struct FlatPlan {
  Plan frame;                                // all but the programs
  std::vector<std::vector<FlatSlot>> slots;  // by rank
  std::vector<FlatEnd> ends;
  std::vector<FlatWait> waits;

  /// Adds both ends of a transfer of one piece; a second one with the same ends and step joins its
  /// message.
  void transfer(int32_t from, Place src, int32_t src_area, int32_t to, Place dst, int32_t dst_area,
                int32_t tensor, const Box& box, int32_t channel, int32_t step);
};

/// Sorts everything into programs. Steps exist where a message is.
Plan make_plan(const FlatPlan& flat);

/// Ranks 0..world-1, all on both sides, two channels, one bf16 tensor "w" of this shape: train
/// shards and gen shards by rank, dense, one after the other in the buffer "w". Staging without a
/// bound.
FlatPlan make_frame(const Dims& shape, const std::vector<std::vector<Box>>& train,
                    const std::vector<std::vector<Box>>& gen);

}  // namespace refit
