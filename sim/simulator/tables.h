#pragma once

#include <string>

#include "sim/simulator/replay.h"

namespace refit {

// A simulation as CSV, for spreadsheets and scripts. Seconds and bytes; a header line names the
// columns. The replay has recorded holders.

/// One line a transfer, by start: from, to, channel, step, bytes, posted_s (both ends had begun),
/// ready_s (start-up and packing over at both), start_s, end_s, alone_s (on idle links), cause,
/// after_rank, after_channel, after_step (what the later end had waited for; empty: nothing),
/// holder (what set its rate for longest).
void write_transfer_table(const Plan& plan, const Fabric& fabric, const Replay& replay,
                          const std::string& path);

/// One line a link that carried something, the fullest first: link, bytes, use, busy_s, transfers,
/// first_s, last_s, gaps, idle_s (between first and last), longest_gap_s, longest_gap_from_s.
void write_link_table(const Fabric& fabric, const Replay& replay, double refit_s,
                      const std::string& path);

/// One line a rank: rank, end_s, wire_s, staging_s, launch_s, wait_s (together the refit time),
/// bytes_in, bytes_out.
void write_rank_table(const Plan& plan, const CostModel& cost, const Replay& replay, double refit_s,
                      const std::string& path);

}  // namespace refit
