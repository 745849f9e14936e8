#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "plans/plan.h"

namespace refit::testing {

/// One box that a transfer moves: from a place of the sender to a place of the receiver. `src_slot`
/// and `dst_slot` count where the place is staging.
struct Move {
  int32_t tensor = 0;
  Box box;
  Place src = Place::kTrain, dst = Place::kGen;
  int32_t src_slot = -1, dst_slot = -1;
};

/// Builds plans by hand, transfer by transfer; steps and messages get their order in finish().
class PlanMaker {
 public:
  PlanMaker(int32_t ranks, int32_t channels);

  /// Both sides of the tensor get buffers of their own.
  int32_t add_tensor(const std::string& name, const Dims& shape, Dtype dtype, RankMap train,
                     RankMap gen);
  int32_t add_slot(int32_t rank, int32_t tensor, const Box& box, int64_t offset, int64_t bytes);
  void add_transfer(int32_t from, int32_t to, int32_t channel, int32_t step,
                    std::vector<Move> moves);
  /// (channel, step) of `rank` waits for (wait.channel, wait.step) of the same rank.
  void add_wait(int32_t rank, int32_t channel, int32_t step, Wait wait);

  /// Adds transfers that bring every needer of every tensor its boxes straight from a holder
  /// (itself, if it is one). The peers a rank sends to lie 0, 1, 2, ... places further on, 8 of
  /// them a step; steps go round robin over the channels. The distinct boxes of a train side have
  /// to tile the tensor.
  void add_direct_transfers();

  Plan finish() const;

 private:
  struct Transfer {
    int32_t from, to, channel, step;
    std::vector<Move> moves;
  };
  struct RankWait {
    int32_t rank, channel, step;
    Wait wait;
  };
  Piece make_piece(Program& program, int32_t rank, const Move& move, bool source) const;

  Plan plan_;
  std::vector<Transfer> transfers_;
  std::vector<RankWait> waits_;
};

/// A dense shard of `box` at `offset` elements of its buffer.
Shard dense_shard(const Box& box, int64_t offset = 0);

/// `ranks` equal dense blocks along `dim`: rank first + i holds block i.
RankMap split(const Dims& shape, int dim, int32_t first, int32_t ranks);

/// Every rank of [first, first + ranks) holds all.
RankMap replicate(const Dims& shape, int32_t first, int32_t ranks);

}  // namespace refit::testing
