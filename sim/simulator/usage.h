#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/simulator/replay.h"
#include "sim/simulator/split.h"

namespace refit {

// What a simulation did with its links and its ranks.

/// A time in which a link carried nothing, between two transfers of it.
struct IdleGap {
  double from = 0, to = 0;
  int32_t next = -1;  // transfer of the graph that ends it
  double seconds() const { return to - from; }
};

/// A time in which it carried something all along.
struct BusyTime {
  double from = 0, to = 0;
  double bytes = 0;  // of the transfers that began in it, which end in it, too
  int64_t transfers = 0;
};

struct LinkUsage {
  int32_t link = -1;
  double bytes = 0;
  double use = 0;     // bytes / (rate x refit time)
  double busy_s = 0;  // seconds in which it carried something
  double first = 0, last = 0;
  int64_t transfers = 0;
  // From `first` to `last`, in time order: it was busy, idle, busy, ..., busy.
  std::vector<BusyTime> busy;
  std::vector<IdleGap> gaps;
};

/// Of all links that carried something, the fullest (by bytes / rate) first, then by number.
std::vector<LinkUsage> link_uses(const Replay& replay, double refit_s);

/// Sorts transfers by start; what starts at one time in order of (rank, channel, id) of the sender.
void sort_by_start(const Replay& replay, std::vector<int32_t>& transfers);

/// Transfers that crossed a link, by start.
std::vector<int32_t> transfers_over(const Replay& replay, int32_t link);

/// The links of the fabric that a transfer crosses.
std::span<const int32_t> links_of(const Replay& replay, size_t transfer);

struct RankUsage {
  double end = 0;   // its last byte is in place
  TimeSplit split;  // of [0, the refit time]
  int64_t bytes_in = 0, bytes_out = 0;
};

/// By rank.
std::vector<RankUsage> rank_uses(const Replay& replay, const CostModel& cost, size_t ranks,
                                 double refit_s);

/// What one rank did with its time until `end`.
TimeSplit rank_split(const Replay& replay, const CostModel& cost, int32_t rank, double end);

}  // namespace refit
