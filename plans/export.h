#pragma once

#include <iosfwd>
#include <string>

#include "plans/plan.h"

namespace refit {

/// One transfer as the export shows it: both ends paired up.
struct PairedTransfer {
  int32_t from = -1, to = -1, channel = 0, step = 0;
  const Message* send = nullptr;  // in the program of `from`
  const Message* recv = nullptr;  // in the program of `to`
  std::vector<int64_t> after;     // ids of transfers of the waits at either end
};

/// All transfers, ordered by an order of execution: applying them one by one is a legal run of the
/// plan. Ids are positions. The plan has to pass `check`.
std::vector<PairedTransfer> pair_transfers(const Plan& plan);

/// DESIGN.md section 4, streamed.
void export_json(const Plan& plan, const std::string& digest, std::ostream& out);
void export_yaml(const Plan& plan, const std::string& digest, std::ostream& out);

/// One line a transfer: id,from,to,channel,step,bytes,pieces,lane,same_domain.
void export_csv(const Plan& plan, std::ostream& out);

}  // namespace refit
