#pragma once

#include <string>
#include <vector>

#include "plans/plan.h"

namespace refit {

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
