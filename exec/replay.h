#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "exec/backend.h"
#include "exec/executor.h"
#include "plans/plan.h"

namespace refit {

struct ReplayOptions {
  int32_t iterations = 3;
  bool verify =
      false;  // fill, poison and compare around every iteration; else the buffers are filled once
  double timeout_s = 30;
  std::function<void(int32_t iteration)> progress;  // may be empty; called after each iteration
};

/// One step as a rank saw it. Means over iterations, as step_times has them.
struct StepReport {
  int32_t channel = 0, step = 0;
  StepTimes times;
  int32_t sends = 0, recvs = 0;  // without those to and from oneself
  int64_t bytes_sent = 0, bytes_received = 0;
};

/// What a rank received from another on a channel: begin of the first and end of the last such
/// step.
struct PeerReport {
  int32_t from = -1, to = -1, channel = 0;
  int64_t messages = 0, bytes = 0;
  StepTimes times;
};

struct RankReport {
  int32_t rank = -1;
  std::vector<double> seconds;  // of each iteration
  double setup_s = 0;           // binding and connections
  int64_t bytes_received = 0, bytes_copied = 0, staging_bytes = 0, buffer_bytes = 0;
  int64_t verified_bytes = 0;  // of one iteration
  std::vector<StepReport> steps;
  std::vector<PeerReport> peers;
};

struct ReplayReport {
  std::vector<double> seconds;  // refit time of each iteration: the slowest rank
  std::vector<RankReport> ranks;
  double setup_s = 0;                              // the slowest rank
  int64_t buffer_bytes = 0, staging_bytes = 0;     // allocated, all ranks
  int64_t bytes_wire = 0, bytes_copied = 0;        // moved by one refit
  int64_t verified_bytes = 0, verified_ranks = 0;  // per iteration; ranks that hold gen buffers

  double median_s() const;
  int64_t bytes_moved() const { return bytes_wire + bytes_copied; }
};

/// Middle of the values; the mean of the two middle ones for an even number.
double median(std::vector<double> values);

/// Fails when so many bytes of buffers and staging do not fit into the memory that is available.
void check_memory(int64_t bytes, const std::string& whose);

/// Throws Error (kWork) after a line on stderr for each fault that `check` finds in the plan.
void refuse_faulty(const Plan& plan, const std::string& path);

/// All that one rank does in a measured replay. The plan needs this rank's program only.
RankReport replay_rank(const Plan& plan, Backend& backend, const ReplayOptions& options);

/// The whole from its parts, by rank.
ReplayReport summarize(std::vector<RankReport> ranks);

}  // namespace refit
