#pragma once

#include <chrono>
#include <cstdint>

#include "sim/search/routing.h"
#include "sim/search/schedule.h"
#include "sim/search/search.h"

namespace refit {

/// Schedules routings in several ways, simulates each and keeps the fastest plan, of equals the
/// first. Ends after as many attempts as SearchOptions::attempts says, or when those made have
/// simulated kTrialTransfers transfers: large problems get one attempt; after the first one also at
/// the deadline, counted from the construction. Deterministic but for the deadline.
class Trials {
 public:
  Trials(const Problem& problem, const SearchOptions& options);

  /// Does nothing when there are no more attempts. The first one fails as schedule_rounds does;
  /// later ones that do not fit the constraints do not count.
  void attempt(const Routing& routing, const RoundTuning& tuning);

  bool more() const;
  bool late() const;

  /// Of the attempts made, at least one. `best` gives the plan away, with its simulated time.
  Plan best();
  const Routing& best_routing() const { return *best_routing_; }

 private:
  const Problem& problem_;
  const SearchOptions& options_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  int32_t attempts_ = 0;
  int64_t transfers_ = 0;
  Plan best_;
  const Routing* best_routing_ = nullptr;
};

}  // namespace refit
