#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/simulator/maxmin.h"

namespace refit {

// Amounts that flow in time at max-min fair rates. Between two events rates are constant, so an
// amount is only brought up to date when its rate changes:
//
//     left := left - rate * (now - since),    end := now + left / new rate.
//
// Usage, in a loop over events with `now` never falling: finish() what ends at `now`, start() what
// begins, then settle(). The next end is found through the least end of every block of 64 flows:
// rates change many at a time, and a rescan of the blocks they are in costs less than that many
// moves in a heap.
class Fluid {
 public:
  /// Ends this close to each other, relative to the time since 0, are one event: rounding must not
  /// split what is simultaneous.
  static constexpr double kSimultaneous = 1e-12;

  Fluid(std::vector<double> capacity, int32_t width);

  /// Begins to move `amount` > 0 through the resources, at most at `cap`. Ids are dense, and reused
  /// after the end.
  int32_t start(double now, double amount, std::span<const int32_t> resources, double cap);

  /// Brings rates and ends up to date after starts and finishes.
  void settle(double now);

  /// The earliest end; infinite when nothing flows.
  double next_end() const;

  /// Removes the flows that end at `now` and appends them to `ended`, ascending.
  void finish(double now, std::vector<int32_t>& ended);

  int64_t visits() const { return rates_.visits(); }

 private:
  void rescan(size_t block);

  MaxMin rates_;
  // By flow. An id that is not in use ends never.
  std::vector<double> left_, rate_, since_, end_;
  // By block.
  std::vector<double> block_end_;
  std::vector<uint8_t> stale_;
  std::vector<size_t> stale_list_;
};

}  // namespace refit
