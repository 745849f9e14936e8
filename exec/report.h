#pragma once

#include <string>
#include <vector>

#include "exec/replay.h"
#include "plans/plan_io.h"

namespace refit {

/// What `refit-exec` says after a replay.
struct Outcome {
  std::string backend;
  LoadedPlan loaded;
  ReplayReport report;
  int cores = 0;           // of this host
  int32_t hosts = 1;       // that the ranks ran on
  double memcpy_rate = 0;  // bytes/s on all cores; 0: not measured
  bool verified = false;

  double rate() const;
};

/// For people.
std::string report_text(const Outcome& outcome);

/// For programs; docs/executor.md describes it.
std::string report_json(const Outcome& outcome, const std::string& build_type);

/// A rank's part as text, and those of all ranks back.
std::string write_rank_report(const RankReport& report);
std::vector<RankReport> read_rank_reports(const std::vector<std::string>& texts);

}  // namespace refit
