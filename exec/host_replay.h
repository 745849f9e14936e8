#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "plans/plan.h"

namespace refit {

struct ReplayOptions {
  int32_t iterations = 3;
  bool verify =
      false;  // fill, poison and compare around every iteration; else the buffers are filled once
  double timeout_s = 30;
  std::function<void(int32_t iteration)> progress;  // may be empty; called after each iteration
};

struct RankReport {
  int32_t rank = -1;
  double seconds = 0;  // median over iterations
  int64_t bytes_received = 0, bytes_copied = 0, staging_bytes = 0;
};

struct ReplayReport {
  std::vector<double> seconds;  // refit time of each iteration: the slowest rank
  std::vector<RankReport> ranks;
  int64_t buffer_bytes = 0, staging_bytes = 0;     // allocated, all ranks
  int64_t bytes_wire = 0, bytes_copied = 0;        // moved by one refit
  int64_t verified_bytes = 0, verified_ranks = 0;  // per iteration; ranks that hold gen buffers

  double median_s() const;
  int64_t bytes_moved() const { return bytes_wire + bytes_copied; }
};

/// Middle of the values; the mean of the two middle ones for an even number.
double median(std::vector<double> values);

/// Replays the plan on this host, all ranks as threads. Throws Error: kInput when buffers and
/// staging do not fit into the memory that is available, kWork when a rank fails or a byte is
/// wrong.
ReplayReport replay_on_host(const Plan& plan, const ReplayOptions& options);

}  // namespace refit
