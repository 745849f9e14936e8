#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "plans/plan.h"
#include "sim/search/search.h"

namespace refit {

// What a baseline does, move by move, in the order of the framework that it stands for, and how
// that becomes a plan. Unlike the free routings of our own strategies a script fixes the order, may
// stage boxes on ranks that do not need them, and says where the framework's host works.

/// A box in the staging memory of a rank, which may be reused: two boxes may overlap in memory as
/// long as the order of the moves keeps them apart in time.
struct StagedBox {
  int32_t rank = -1, tensor = -1;
  Box box;
  int64_t offset = 0;  // bytes
};

/// Place in the order: lanes run concurrently, batches of a lane one after the other; one batch is
/// one group call.
struct Turn {
  int32_t lane = 0;
  int32_t batch = 0;
};

/// A box of a tensor moves from one rank to another, or between places of one rank.
struct Move {
  int32_t tensor = -1;
  Box box;
  int32_t from = -1, to = -1;
  Turn turn;
  Place source = Place::kTrain;
  int32_t source_slot = -1;  // of Script::slots, with Place::kStaging
  int32_t target_slot = -1;  // of Script::slots; -1: a gen shard of `to`
};

/// Host work before a batch: counts, to be priced by the cost model (HostCost).
struct HostBatch {
  Turn turn;
  double parameters = 0, calls = 0;
};

struct Script {
  std::vector<StagedBox> slots;
  std::vector<Move> moves;
  std::vector<HostBatch> host;
  int32_t bulk_lanes = 0;  // lanes from this one on begin, on every rank, when those before ended;
                           // 0: all lanes are concurrent

  int32_t add_slot(StagedBox slot) {
    slots.push_back(slot);
    return static_cast<int32_t>(slots.size()) - 1;
  }
};

/// The plan of a script. Lanes are channels; a batch is one group call: messages above `message`
/// bytes go in several steps of it, and so do the peers of a rank beyond eight.
Plan plan_script(const Problem& problem, const Script& script, int64_t message);

/// Makes scripts for ever smaller messages, from `largest` on, until slots and packing fit the
/// staging bound.
Plan fit_script(const Problem& problem, const SearchOptions& options, int64_t largest,
                const std::function<Script(int64_t message)>& make);

}  // namespace refit
