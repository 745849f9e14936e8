#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plans/plan.h"

namespace refit {

/// A file of `--rank-map`: the process of rank 0, of rank 1, ...; `#` begins a comment. Throws
/// Error that names the line.
std::vector<int32_t> load_rank_map(const std::string& path);

/// The rank of each process. Throws Error where the map is no permutation of the processes.
std::vector<int32_t> invert_rank_map(const std::vector<int32_t>& process_of, int32_t processes);

/// Where a process finds itself.
struct Whereabouts {
  std::string host, nvlink_domain;
};

/// The host, by REFIT_NODE where its name does not tell it apart, and the domain of
/// REFIT_NVLINK_DOMAIN, which else is the host.
Whereabouts find_whereabouts();

/// Compares where ranks run with where the plan has them: ranks of one node (NVLink domain) share a
/// host (domain), those of different ones do not. Throws Error that names two ranks. Classes are
/// compared, not names; ranks without a name in the plan may be anywhere.
///
/// All ranks of several nodes on one host are a rehearsal, which is allowed: returns true.
bool check_placement(const Plan& plan, const std::vector<Whereabouts>& found);

}  // namespace refit
